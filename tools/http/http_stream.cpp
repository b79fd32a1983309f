#include "tools/http/http_stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace fewbit {

bool HttpStream::wait(short events, Clock::time_point until) const {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd one{.fd = socket_, .events = events, .revents = 0};
    const int n = poll(&one, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

bool HttpStream::next_request() {
  const auto until = Clock::now() + std::chrono::seconds(door_.client_s);
  while (at_ == end_ && !wait(POLLIN, std::min(until, Clock::now() + std::chrono::milliseconds(50))))
    if (door_.closing() || Clock::now() >= until) return false;
  until_ = Clock::now() + std::chrono::seconds(door_.client_s);
  head_left_ = kMaxHead;
  received_ = 0;
  line_.clear();
  return true;
}

// A client that has closed its own side counts as gone: a socket tells no more of one that went away altogether.
bool HttpStream::alive() const {
  char byte = 0;
  const ssize_t n = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

bool HttpStream::is_readable() const { return at_ < end_ || wait(POLLIN, until_); }

// What the head may not have: more bytes than its limit, and a Range, which the library reads by a recursion that takes
// up to 4 MiB of a thread's stack. Nothing here comes in ranges.
bool HttpStream::take_head(std::string_view bytes) {
  static constexpr std::string_view kRange = "range:";
  head_left_ -= std::ssize(bytes);
  for (const char c : bytes) {
    if (c == '\n')
      line_.clear();
    else if (line_.size() < kRange.size())
      line_ += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (line_ == kRange) return false;
  }
  return head_left_ >= 0;
}

ssize_t HttpStream::read(char* out, size_t size) {
  if (at_ == end_) {
    if (!wait(POLLIN, until_)) return -1;
    const ssize_t n = recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (n <= 0) return n;
    at_ = 0;
    end_ = static_cast<size_t>(n);
    received_ += n;
  }
  const size_t n = std::min(size, end_ - at_);
  if (head_left_ >= 0 && !take_head({buffer_.data() + at_, n})) return leave_body(), -1;
  std::memcpy(out, buffer_.data() + at_, n);
  at_ += n;
  return static_cast<ssize_t>(n);
}

ssize_t HttpStream::write(const char* data, size_t size) {
  const auto until = Clock::now() + std::chrono::seconds(door_.client_s);
  for (size_t done = 0; done < size;) {
    if (!wait(POLLOUT, until)) return -1;
    const ssize_t n = send(socket_, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return -1;
    done += static_cast<size_t>(std::max<ssize_t>(n, 0));
  }
  return static_cast<ssize_t>(size);
}

// A socket that closes over unread bytes resets the connection, and the client may lose the answer that says why. So
// what still comes is read for a moment.
void HttpStream::close_socket() {
  shutdown(socket_, SHUT_WR);
  const auto until = Clock::now() + std::chrono::seconds(1);
  while (!whole_was_read() && wait(POLLIN, until) && recv(socket_, buffer_.data(), buffer_.size(), 0) > 0) {
  }
  shutdown(socket_, SHUT_RDWR);
  close(socket_);
}

}  // namespace fewbit
