// The door, by cpp-httplib: a thread for every connection, of a fixed number.
#include <httplib.h>
#include <malloc.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tools/http/http_door.h"
#include "tools/http/http_stream.h"

namespace fewbit {
namespace {

using Handled = httplib::Server::HandlerResponse;

void send(const HttpReply& reply, httplib::Response& out) {
  out.status = reply.status;
  for (const auto& [name, value] : reply.headers) out.set_header(name, value);
  if (!reply.more) return out.set_content(reply.body, reply.type);
  out.set_chunked_content_provider(
      reply.type,
      [more = reply.more](size_t, httplib::DataSink& sink) {
        std::string piece;
        const bool goes_on = more(piece);
        if (!sink.is_writable()) return false;
        if (!piece.empty() && !sink.write(piece.data(), piece.size())) return false;
        if (!goes_on) sink.done();
        return true;
      },
      [gone = reply.gone](bool) {
        if (gone) gone();
      });
}

// Two servers on one port would share its clients.
void set_options(socket_t socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
}

// What of a request's head is refused, as a status; 0: nothing. A packed body could unfold to any size, one whose
// length is not told could have any; a long path, or the lines of a form's parts, would be matched by a recursion.
int refused_head(const httplib::Request& in, int64_t max_body) {
  if (in.method != "GET" && in.method != "HEAD" && in.method != "POST") return 405;
  if (in.path.size() > 256) return 404;
  if (in.has_header("Content-Encoding") || in.get_header_value("Content-Type").starts_with("multipart/")) return 415;
  if (in.has_header("Transfer-Encoding")) return 411;
  if (!in.has_header("Content-Length")) return in.method == "POST" ? 411 : 0;
  const std::string length = in.get_header_value("Content-Length");
  if (in.get_header_value_count("Content-Length") != 1 || length.empty() ||
      length.find_first_not_of("0123456789") != std::string::npos)
    return 400;
  if (length.size() > 18 || std::stoll(length) > max_body) return 413;
  return in.method != "POST" && std::stoll(length) > 0 ? 400 : 0;
}

class Server final : public httplib::Server {
 public:
  explicit Server(const HttpDoor& door) : door_(door) {
    new_task_queue = [n = door.connections] { return new httplib::ThreadPool(static_cast<size_t>(n)); };
    set_socket_options(set_options);
    set_tcp_nodelay(true);
    set_payload_max_length(static_cast<size_t>(door.max_body));
    set_pre_routing_handler([this](const httplib::Request& in, httplib::Response& out) { return receive(in, out); });
    const auto answer = [this](const httplib::Request& in, httplib::Response& out) {
      HttpReply reply;
      door_.answer(call_of(in), reply);
      send(reply, out);
    };
    Get(".*", answer).Post(".*", answer);
    set_error_handler([this](const httplib::Request&, httplib::Response& out) {
      if (out.body.empty()) out.set_content(door_.error_body(out.status), "application/json");
    });
  }

  // Nobody is inside whose answer stop() would cut short.
  bool quiet() {
    const std::lock_guard lock(mutex_);
    return inside_.empty();
  }

 private:
  static constexpr int kRequests = 1000;  // of a connection
  // The pieces of a request of more bytes go back to the system, else each of many threads' heaps would keep its
  // largest.
  static constexpr int64_t kLarge = 8 << 10;

  HttpStream& stream() {
    const std::lock_guard lock(mutex_);
    return *streams_.at(std::this_thread::get_id());
  }
  HttpCall call_of(const httplib::Request& r) {
    return {r.method, r.path, r.get_header_value("Authorization"), r.body, [&s = stream()] { return s.alive(); }};
  }

  Handled receive(const httplib::Request& in, httplib::Response& out) {
    stream().head_is_read();
    HttpReply reply{.status = refused_head(in, door_.max_body)};
    if (reply.status != 0)
      reply.body = door_.error_body(reply.status);
    else
      door_.at_the_door(call_of(in), reply);
    if (reply.status == 0) {
      const std::lock_guard lock(mutex_);
      inside_.insert(std::this_thread::get_id());
      return Handled::Unhandled;
    }
    stream().leave_body();
    reply.headers.emplace_back("Connection", "close");
    send(reply, out);
    return Handled::Handled;
  }

  // Every version of the library that distributions have calls this with a connection that it accepted.
  bool process_and_close_socket(socket_t socket) override {
    HttpStream stream(socket, door_);
    set_stream(&stream);
    bool good = true, closed = false;
    for (int left = kRequests; good && !closed && left > 0 && stream.next_request(); --left) {
      good = process(*this, stream, left == 1 || door_.closing(), closed);
      good = good && stream.whole_was_read();
      if (stream.received() > kLarge) malloc_trim(0);
      const std::lock_guard lock(mutex_);
      inside_.erase(std::this_thread::get_id());
    }
    set_stream(nullptr);
    return good;
  }
  // Later versions want to be told the addresses as well.
  template <typename S>
  static bool process(S& server, HttpStream& stream, bool close, bool& closed) {
    if constexpr (requires { server.process_request(stream, close, closed, nullptr); })
      return server.process_request(stream, close, closed, nullptr);
    else
      return server.process_request(stream, "", 0, "", 0, close, closed, nullptr);
  }
  void set_stream(HttpStream* stream) {
    const std::lock_guard lock(mutex_);
    if (stream)
      streams_[std::this_thread::get_id()] = stream;
    else
      streams_.erase(std::this_thread::get_id());
  }

  const HttpDoor& door_;
  std::mutex mutex_;
  std::map<std::thread::id, HttpStream*> streams_;  // the library hands none to those who answer
  std::set<std::thread::id> inside_;                // between the door and the end of the answer
};

}  // namespace

extern "C" __attribute__((visibility("default"))) bool fewbit_http_serve(const HttpDoor& door, std::string& problem) {
  // A heap for each of many threads would keep the most that its thread ever needed; and the parts of a large request
  // would leave holes between what is kept, but for a threshold that does not grow with them.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 64 << 10);
  if (door.version != HttpDoor::kVersion) return problem = "of another build than this program", false;
  Server server(door);
  const int port = door.port == 0                              ? server.bind_to_any_port(door.host)
                   : server.bind_to_port(door.host, door.port) ? door.port
                                                               : -1;
  if (port < 0) return problem = "the port cannot be had: another program has it, or it is not allowed", false;
  std::atomic<bool> ended = false;
  std::thread watch([&] {
    while (!ended && !(door.closing() && server.quiet())) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    while (!ended && !server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    server.stop();
  });
  door.open(port);
  server.listen_after_bind();
  ended = true;
  watch.join();
  return true;
}

}  // namespace fewbit
