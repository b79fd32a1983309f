// The door, by cpp-httplib: a thread for every connection, of a fixed number.
#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "tools/http/http_door.h"

namespace fewbit {
namespace {

HttpCall call_of(const httplib::Request& r) { return {r.method, r.path, r.get_header_value("Authorization"), r.body}; }

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

void set_limits(httplib::Server& server, const HttpDoor& door) {
  server.new_task_queue = [n = door.connections] { return new httplib::ThreadPool(static_cast<size_t>(n)); };
  server.set_socket_options(set_options);
  server.set_tcp_nodelay(true);
  server.set_payload_max_length(static_cast<size_t>(door.max_body));
  server.set_read_timeout(door.slowest_s);
  server.set_write_timeout(door.slowest_s);
  server.set_keep_alive_timeout(door.slowest_s);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) bool fewbit_http_serve(const HttpDoor& door, std::string& problem) {
  if (door.version != HttpDoor::kVersion) return problem = "of another build than this program", false;
  httplib::Server server;
  set_limits(server, door);
  const auto refuse = [&](int status, httplib::Response& out) {
    out.status = status;
    out.set_header("Connection", "close");
    out.set_content(door.error_body(status), "application/json");
    return httplib::Server::HandlerResponse::Handled;
  };
  server.set_pre_routing_handler([&](const httplib::Request& in, httplib::Response& out) {
    // A packed body could unfold to any size, and one of unknown length have any.
    if (in.has_header("Content-Encoding")) return refuse(415, out);
    if (in.has_header("Transfer-Encoding")) return refuse(411, out);
    HttpReply reply{.status = 0};
    door.at_the_door(call_of(in), reply);
    if (reply.status == 0) return httplib::Server::HandlerResponse::Unhandled;
    reply.headers.emplace_back("Connection", "close");  // the body was not read
    send(reply, out);
    return httplib::Server::HandlerResponse::Handled;
  });
  const auto answer = [&](const httplib::Request& in, httplib::Response& out) {
    HttpReply reply;
    door.answer(call_of(in), reply);
    send(reply, out);
  };
  server.Get(".*", answer)
      .Post(".*", answer)
      .Put(".*", answer)
      .Patch(".*", answer)
      .Delete(".*", answer)
      .Options(".*", answer);
  server.set_error_handler([&](const httplib::Request&, httplib::Response& out) {
    if (out.body.empty()) out.set_content(door.error_body(out.status), "application/json");
  });
  const int port = door.port == 0                              ? server.bind_to_any_port(door.host)
                   : server.bind_to_port(door.host, door.port) ? door.port
                                                               : -1;
  if (port < 0) return problem = "the port cannot be had: another program has it, or it is not allowed", false;
  std::atomic<bool> ended = false;
  std::thread watch([&] {
    while (!ended && !door.closing()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
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
