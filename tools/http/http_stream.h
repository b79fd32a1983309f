#pragma once
// One connection: what the library reads from and writes to, with limits that hold for a whole request. The library's
// own stream limits each read, so that a client which sends a byte now and then could stay for ever.
#include <httplib.h>

#include <array>
#include <chrono>
#include <string>
#include <string_view>

#include "tools/http/http_door.h"

namespace fewbit {

// wait_readable, wait_writable and duration are asked for by later versions of the library only.
class HttpStream final : public httplib::Stream {
 public:
  static constexpr int64_t kMaxHead = 16 << 10;  // bytes of a request before its body

  HttpStream(int socket, const HttpDoor& door) : socket_(socket), door_(door) {}
  ~HttpStream() override { close_socket(); }
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  bool next_request();                             // waits for its first byte, and starts its time; false: none came
  void head_is_read() { head_left_ = -1; }         // called before the body is
  void leave_body() { body_left_behind_ = true; }  // the client may be sending still when the socket closes
  bool whole_was_read() const { return head_left_ < 0 && !body_left_behind_; }  // what comes next begins a request
  bool alive() const;
  int64_t received() const { return received_; }  // bytes of this request so far

  bool is_readable() const override;
  bool is_writable() const override { return alive(); }
  bool wait_readable() const { return is_readable(); }
  bool wait_writable() const { return alive(); }
  time_t duration() const { return 0; }
  ssize_t read(char* out, size_t size) override;
  ssize_t write(const char* data, size_t size) override;  // all of it
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool wait(short events, Clock::time_point until) const;
  bool take_head(std::string_view bytes);
  void close_socket();

  int socket_;
  const HttpDoor& door_;
  Clock::time_point until_{};  // when the request must have come
  int64_t head_left_ = -1;     // of kMaxHead, while a head comes
  std::string line_;           // the beginning of a line of the head
  int64_t received_ = 0;
  bool body_left_behind_ = false;
  std::array<char, 8192> buffer_{};
  size_t at_ = 0, end_ = 0;  // of what the buffer holds
};

}  // namespace fewbit
