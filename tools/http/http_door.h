#pragma once
// The door to which HTTP clients come. It is a module of its own, fewbit_http.so, because its library is a shared one
// that not every machine has: only `runner serve` loads it. Both sides are of one build.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace fewbit {

struct HttpCall {
  std::string method, path, authorization, body;
  std::function<bool()> alive{};  // false: the client has gone
};
struct HttpReply {
  int status = 200;
  std::string type = "application/json", body{};
  std::vector<std::pair<std::string, std::string>> headers{};
  // Set: the body comes in pieces. Appends the next one, which may be nothing for now, and says whether more will come.
  // A call takes a fraction of a second at most, and throws nothing.
  std::function<bool(std::string& piece)> more{};
  std::function<void()> gone{};  // the client went before the end, or the end was sent
};
struct HttpDoor {
  static constexpr int kVersion = 1;
  int version = kVersion;
  std::string host = "127.0.0.1";
  int port = 0;                // 0: any
  int connections = 128;       // at one time; others wait
  int64_t max_body = 1 << 20;  // bytes
  // Within so many seconds a whole request must have come, and a piece of an answer be taken; and so long is a
  // connection kept on which nothing comes.
  int client_s = 10;
  std::function<void(const HttpCall&, HttpReply&)> answer{};  // from several threads
  // What to answer before the body is read; status 0: go on.
  std::function<void(const HttpCall&, HttpReply&)> at_the_door{};
  std::function<std::string(int status)> error_body{};  // of what never comes to answer()
  std::function<void(int port)> open{};
  std::function<bool()> closing{};  // asked often
};
// Serves until closing(), then lets those who are inside finish. False with the reason where the port cannot be had.
using HttpServe = bool (*)(const HttpDoor&, std::string& problem);

}  // namespace fewbit
