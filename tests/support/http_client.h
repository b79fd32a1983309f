#pragma once
// A client as plain as can be, so that tests can be rude with it: one connection a request, no library. And a program
// that serves, with what it prints.
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/support.h"

namespace fewbit::test {

class Connection {
 public:
  explicit Connection(int port);  // to 127.0.0.1; open() says whether it came about
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  bool open() const { return socket_ >= 0; }
  bool send(const std::string& bytes) const;  // false: the other side has closed
  bool ended() const;                         // the other side has closed, and nothing is left to read
  std::string some() const;                   // what comes next; "" at the end
  std::string rest() const;
  void close();

 private:
  int socket_ = -1;
};

struct HttpAnswer {
  int status = 0;                                // 0: none that can be read
  std::map<std::string, std::string> headers{};  // names in lower case
  std::string body{};
};
HttpAnswer http_answer(const std::string& bytes);  // chunks put together
std::string http_request(const std::string& method, const std::string& path, const std::string& body = "",
                         const std::string& headers = "");  // closes the connection behind it
// The data of the events of a stream.
std::vector<std::string> events_of(const std::string& body);

// `runner serve` with these flags on a free port; ended where it is still there.
class RunningServer {
 public:
  explicit RunningServer(const std::string& flags);
  ~RunningServer();
  static bool built();
  int port() const { return port_; }  // 0: it did not start
  std::string printed() const;        // on both outputs
  void signal(int number) const;
  int wait();  // exit code, after at most a minute; -1 where there is none

 private:
  TempDir dir_;
  pid_t pid_ = -1;
  int port_ = 0;
};

}  // namespace fewbit::test
