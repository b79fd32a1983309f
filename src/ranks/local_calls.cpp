#include "src/ranks/local_calls.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fewbit {
namespace {

enum Status : int { kFine = 0, kNoMeeting = 1, kGone = 2 };
constexpr int kInnerTag = 1 << 20;  // of the collective calls here
constexpr auto kMeetingTime = std::chrono::seconds(60);

struct Header {
  int64_t bytes;
  int32_t tag;
};
struct Request {
  int other = 0, tag = 0;
  int64_t number = 0;  // of the messages to receive from that rank with that tag
  void* data = nullptr;
  int64_t bytes = 0;
  bool sends = false, sent = false;
};
// A message on its way out: its header, then its data, of which `done` bytes are gone.
struct Outgoing {
  Header header;
  const char* data;
  int64_t done = 0;
  Request* request;
};
struct Peer {
  int socket = -1;
  bool gone = false;  // it ended, in order or not: an error only for who waits for it
  std::deque<Outgoing> out{};
  Header header{};  // of the message that is coming, of which `got` bytes are there
  int64_t got = 0;
  std::vector<char> coming{};
};
// Messages of one rank and tag: how many were asked for, how many came, and those that nobody took yet.
struct Mailbox {
  int64_t asked = 0, came = 0;
  std::map<int64_t, std::vector<char>> held{};
};
struct Meeting {
  int rank = 0, size = 1;
  std::vector<Peer> peers{};
  std::map<std::pair<int, int>, Mailbox> boxes{};
};
std::unique_ptr<Meeting> g_meeting;  // of this process, from start() to finish()

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

void write_some(Peer& p) {
  while (!p.out.empty()) {
    Outgoing& o = p.out.front();
    constexpr int64_t kHead = sizeof(Header);
    const bool head = o.done < kHead;
    const char* from = head ? reinterpret_cast<const char*>(&o.header) + o.done : o.data + (o.done - kHead);
    const int64_t left = (head ? kHead : kHead + o.header.bytes) - o.done;
    if (left > 0) {
      const ssize_t n = ::send(p.socket, from, static_cast<size_t>(left), MSG_NOSIGNAL);
      if (n < 0) {
        p.gone |= !would_block();
        return;
      }
      o.done += n;
    }
    if (o.done < kHead + o.header.bytes) continue;
    o.request->sent = true;
    p.out.pop_front();
  }
}

void read_some(Meeting& m, int other) {
  Peer& p = m.peers[static_cast<size_t>(other)];
  constexpr int64_t kHead = sizeof(Header);
  while (true) {
    const bool head = p.got < kHead;
    char* to = head ? reinterpret_cast<char*>(&p.header) + p.got : p.coming.data() + (p.got - kHead);
    const int64_t left = (head ? kHead : kHead + p.header.bytes) - p.got;
    if (left > 0) {
      const ssize_t n = ::recv(p.socket, to, static_cast<size_t>(left), 0);
      if (n <= 0) {
        p.gone |= n == 0 || !would_block();
        return;
      }
      p.got += n;
    }
    if (head && p.got == kHead) p.coming.resize(static_cast<size_t>(p.header.bytes));
    if (p.got < kHead || p.got < kHead + p.header.bytes) continue;
    Mailbox& box = m.boxes[{other, p.header.tag}];
    box.held.emplace(box.came++, std::exchange(p.coming, {}));
    p.got = 0;
  }
}

// Sends and receives what can be, and waits for something where `wait`.
void move(Meeting& m, bool wait) {
  std::vector<pollfd> sockets;
  std::vector<int> ranks;
  for (int r = 0; r < m.size; ++r) {
    const Peer& p = m.peers[static_cast<size_t>(r)];
    if (r == m.rank || p.gone) continue;
    sockets.push_back({p.socket, static_cast<short>(POLLIN | (p.out.empty() ? 0 : POLLOUT)), 0});
    ranks.push_back(r);
  }
  if (::poll(sockets.data(), sockets.size(), wait ? -1 : 0) <= 0) return;
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (sockets[i].revents & POLLOUT) write_some(m.peers[static_cast<size_t>(ranks[i])]);
    if (sockets[i].revents & (POLLIN | POLLHUP | POLLERR)) read_some(m, ranks[i]);
  }
}

int begin_send(const void* data, int64_t bytes, int to, int tag, void** request) {
  auto r = std::make_unique<Request>(Request{.other = to, .tag = tag, .bytes = bytes, .sends = true});
  Peer& p = g_meeting->peers[static_cast<size_t>(to)];
  p.out.push_back({{bytes, tag}, static_cast<const char*>(data), 0, r.get()});
  *request = r.release();
  write_some(p);
  return kFine;
}

int begin_receive(void* data, int64_t bytes, int from, int tag, void** request) {
  const int64_t number = g_meeting->boxes[{from, tag}].asked++;
  *request = new Request{.other = from, .tag = tag, .number = number, .data = data, .bytes = bytes};
  return kFine;
}

// Whether it is done; then what came is in its place.
bool arrived(Request& r, int* error) {
  if (r.sends) return r.sent;
  Mailbox& box = g_meeting->boxes[{r.other, r.tag}];
  const auto found = box.held.find(r.number);
  if (found == box.held.end()) return false;
  if (static_cast<int64_t>(found->second.size()) != r.bytes)
    *error = MpiCalls::kWrongLength;
  else if (r.bytes > 0)
    std::memcpy(r.data, found->second.data(), static_cast<size_t>(r.bytes));
  box.held.erase(found);
  return true;
}

// The rank that went has said why; the launcher ends this one meanwhile, which a handler must not put off.
Status gone() {
  std::signal(SIGTERM, SIG_DFL);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  return kGone;
}

int wait(void* request) {
  const std::unique_ptr<Request> r(static_cast<Request*>(request));
  int error = kFine;
  while (!arrived(*r, &error)) {
    if (g_meeting->peers[static_cast<size_t>(r->other)].gone) return gone();
    move(*g_meeting, true);
  }
  return error;
}

int test(void* request, bool* done) {
  Request* r = static_cast<Request*>(request);
  move(*g_meeting, false);
  int error = kFine;
  *done = arrived(*r, &error);
  if (!*done && g_meeting->peers[static_cast<size_t>(r->other)].gone) error = gone();
  if (*done) delete r;
  return error;
}

int broadcast(void* data, int64_t bytes, int root) {
  std::vector<void*> requests;
  int error = kFine;
  for (int r = 0; r < g_meeting->size && error == kFine; ++r) {
    if (r == g_meeting->rank || (g_meeting->rank != root && r != root)) continue;
    error = g_meeting->rank == root ? begin_send(data, bytes, r, kInnerTag, &requests.emplace_back())
                                    : begin_receive(data, bytes, root, kInnerTag, &requests.emplace_back());
  }
  for (void* r : requests)
    if (const int e = wait(r); error == kFine) error = e;
  return error;
}

int node_gather(const void* mine, void* all, int bytes) {
  int error = kFine;
  for (int r = 0; r < g_meeting->size && error == kFine; ++r) {
    char* of = static_cast<char*>(all) + static_cast<std::ptrdiff_t>(r) * bytes;
    if (r == g_meeting->rank) std::memcpy(of, mine, static_cast<size_t>(bytes));
    error = broadcast(of, bytes, r);
  }
  return error;
}

int barrier() {
  std::vector<char> all(static_cast<size_t>(g_meeting->size));
  const char here = 0;
  return node_gather(&here, all.data(), 1);
}

sockaddr_un address_of(const std::string& folder, int rank) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::snprintf(a.sun_path, sizeof a.sun_path, "%s/%d", folder.c_str(), rank);
  return a;
}

// A socket to a rank that may have started later.
int connect_to(const std::string& folder, int rank) {
  const sockaddr_un a = address_of(folder, rank);
  const auto end = std::chrono::steady_clock::now() + kMeetingTime;
  while (std::chrono::steady_clock::now() < end) {
    const int s = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s >= 0 && ::connect(s, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0) return s;
    if (s >= 0) ::close(s);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return -1;
}

int accept_from(int listening, int* rank) {
  pollfd p{listening, POLLIN, 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kMeetingTime);
  int ready = 0;
  do ready = ::poll(&p, 1, static_cast<int>(limit.count()));
  while (ready < 0 && errno == EINTR);  // a signal, such as that of a process that was stopped and goes on
  if (ready != 1) return -1;
  const int s = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
  return s >= 0 && ::recv(s, rank, sizeof *rank, MSG_WAITALL) == sizeof *rank ? s : -1;
}

int start(Place* place) {
  const char *rank = std::getenv("FEWBIT_RANK"), *size = std::getenv("FEWBIT_RANKS"),
             *folder = std::getenv("FEWBIT_MEETING");
  if (!rank || !size || !folder) return kNoMeeting;
  g_meeting = std::make_unique<Meeting>();
  Meeting& m = *g_meeting;
  m.rank = std::atoi(rank), m.size = std::atoi(size);
  if (m.rank < 0 || m.rank >= m.size) return kNoMeeting;
  m.peers.resize(static_cast<size_t>(m.size));
  const sockaddr_un mine = address_of(folder, m.rank);
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listening < 0 || ::bind(listening, reinterpret_cast<const sockaddr*>(&mine), sizeof mine) != 0 ||
      ::listen(listening, m.size) != 0)
    return kNoMeeting;
  for (int r = 0; r < m.rank; ++r) {
    const int s = m.peers[static_cast<size_t>(r)].socket = connect_to(folder, r);
    if (s < 0 || ::send(s, &m.rank, sizeof m.rank, MSG_NOSIGNAL) != sizeof m.rank) return kNoMeeting;
  }
  for (int n = m.rank + 1; n < m.size; ++n) {
    int other = -1;
    const int s = accept_from(listening, &other);
    if (s < 0 || other <= m.rank || other >= m.size) return kNoMeeting;
    m.peers[static_cast<size_t>(other)].socket = s;
  }
  ::close(listening);
  ::unlink(mine.sun_path);
  for (const Peer& p : m.peers)
    if (p.socket >= 0) ::fcntl(p.socket, F_SETFL, ::fcntl(p.socket, F_GETFL) | O_NONBLOCK);
  *place = {m.rank, m.size, m.rank, m.size};
  return kFine;
}

void text(int error, char* line, int size) {
  const char* words = error == kNoMeeting               ? "the processes do not find each other in FEWBIT_MEETING"
                      : error == MpiCalls::kWrongLength ? "a message has another length than its receiver expects"
                                                        : "another process of this run has ended";
  std::snprintf(line, static_cast<size_t>(size), "%s", words);
}

int finish() {
  const int error = barrier();
  for (const Peer& p : g_meeting->peers)
    if (p.socket >= 0) ::close(p.socket);
  g_meeting.reset();
  return error;
}

}  // namespace

const MpiCalls* local_calls() {
  static const MpiCalls calls{.version = MpiCalls::kVersion,
                              .library = +[] { return "Unix sockets"; },
                              .start = start,
                              .node_gather = node_gather,
                              .send = begin_send,
                              .receive = begin_receive,
                              .wait = wait,
                              .test = test,
                              .broadcast = broadcast,
                              .barrier = barrier,
                              .text = text,
                              .finish = finish,
                              .abort = +[](int exit_code) { std::_Exit(exit_code); }};
  return &calls;
}

}  // namespace fewbit
