#include "tests/support/http_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <sstream>
#include <thread>

#include "tests/support/paths.h"

namespace fewbit::test {

using std::chrono::milliseconds;

Connection::Connection(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{.tv_sec = 60, .tv_usec = 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) close();
}

Connection::~Connection() { close(); }

void Connection::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

bool Connection::send(const std::string& bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::send(socket_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool Connection::ended() const {
  char byte = 0;
  const ssize_t n = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

std::string Connection::some() const {
  std::string bytes(65536, '\0');
  const ssize_t n = recv(socket_, bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return bytes;
}

std::string Connection::rest() const {
  std::string all;
  for (std::string more = some(); !more.empty(); more = some()) all += more;
  return all;
}

std::string http_request(const std::string& method, const std::string& path, const std::string& body,
                         const std::string& headers) {
  std::string r = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers;
  if (method == "POST")
    r += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return r + "\r\n" + body;
}

HttpAnswer http_answer(const std::string& bytes) {
  HttpAnswer a;
  const size_t head = bytes.find("\r\n\r\n");
  if (!bytes.starts_with("HTTP/1.1 ") || head == std::string::npos) return a;
  a.status = std::stoi(bytes.substr(9, 3));
  std::istringstream lines(bytes.substr(0, head));
  std::string line;
  while (std::getline(lines, line))
    if (const size_t colon = line.find(':'); colon != std::string::npos) {
      std::string name = line.substr(0, colon);
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      const size_t end = line.find_last_not_of("\r ");
      a.headers[name] = line.substr(colon + 2, end - colon - 1);
    }
  a.body = bytes.substr(head + 4);
  if (a.headers["transfer-encoding"] != "chunked") return a;
  std::string whole;
  for (size_t at = 0; at < a.body.size();) {
    const size_t line_end = a.body.find("\r\n", at), size = std::stoul(a.body.substr(at, line_end - at), nullptr, 16);
    whole += a.body.substr(line_end + 2, size);
    at = line_end + 2 + size + 2;
    if (size == 0) break;
  }
  a.body = whole;
  return a;
}

std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> events;
  std::istringstream lines(body);
  std::string line;
  while (std::getline(lines, line))
    if (line.starts_with("data: ")) events.push_back(line.substr(6));
  return events;
}

bool RunningServer::built() {
  return std::filesystem::exists(in_build("bin/runner")) &&
         std::filesystem::exists(in_build("lib/fewbit/fewbit_http.so"));
}

RunningServer::RunningServer(const std::string& flags) {
  const std::string command = "exec '" + in_build("bin/runner") + "' serve --port 0 --device cpu " + flags;
  const std::string out = dir_ / "out";
  pid_ = fork();
  if (pid_ == 0) {
    const int file = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, 1), dup2(file, 2);
    setenv("XDG_CACHE_HOME", (dir_ / "cache").c_str(), 1);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  for (int tries = 0; tries < 3000 && port_ == 0; ++tries) {
    std::this_thread::sleep_for(milliseconds(20));
    const std::string text = printed();
    if (const size_t at = text.find(" at http://"); at != std::string::npos && text.find('\n', at) != std::string::npos)
      port_ = std::stoi(text.substr(text.find(':', at + 11) + 1));
    int status = 0;
    if (port_ == 0 && waitpid(pid_, &status, WNOHANG) == pid_) pid_ = -1;
    if (pid_ < 0) return;
  }
}

RunningServer::~RunningServer() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::string RunningServer::printed() const {
  return std::filesystem::exists(dir_ / "out") ? bytes_of_file(dir_ / "out") : "";
}

void RunningServer::signal(int number) const { kill(pid_, number); }

int RunningServer::wait() {
  int status = 0;
  for (int tries = 0; tries < 3000 && pid_ > 0; ++tries) {
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  return -1;
}

}  // namespace fewbit::test
