// A library to be loaded in front of a program (LD_PRELOAD): kills it before its KILL_AT-th call that changes what is
// on the disk. For tests that a run which dies anywhere can be gone on with.
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace {

void step() {
  static const long at = std::getenv("KILL_AT") ? std::atol(std::getenv("KILL_AT")) : 0;
  static std::atomic<long> calls{0};
  if (++calls == at) ::kill(::getpid(), SIGKILL);
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  step();
  return next<ssize_t(int, const void*, size_t)>("write")(fd, data, bytes);
}
int fsync(int fd) {
  step();
  return next<int(int)>("fsync")(fd);
}
int rename(const char* from, const char* to) {
  step();
  return next<int(const char*, const char*)>("rename")(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  step();
  return next<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from, to_folder, to, flags);
}
int unlinkat(int folder, const char* name, int flags) {
  step();
  return next<int(int, const char*, int)>("unlinkat")(folder, name, flags);
}

}  // extern "C"
