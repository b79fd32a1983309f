// A library to be loaded in front of a program (LD_PRELOAD), for tests that nothing is lost or half written whatever
// the system does:
//
//   KILL_AT=n             kills the program before its n-th call that changes what is on the disk
//   FAIL_CALL=NAME        the n-th call of that name fails: write, fsync, rename, unlink, mkdir, copy, ftruncate, open
//   FAIL_AT=n             (a file that is made), mmap (of a file) or new (memory)
//   FAIL_ERRNO=e          with that number of errno, ENOSPC if it is left out
//   FAIL_LASTS=1          and so does every later one
//   COUNT_TO=FILE         at its end, a line "NAME n" for every kind of call
//
// Calls on standard input, output and error are none of these.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

enum Call { k_write, k_fsync, k_rename, k_unlink, k_mkdir, k_copy, k_ftruncate, k_open, k_mmap, k_new, kCalls };
constexpr std::array<const char*, kCalls> kNames = {"write", "fsync",     "rename", "unlink", "mkdir",
                                                    "copy",  "ftruncate", "open",   "mmap",   "new"};

long number_of(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atol(text) : otherwise;
}

std::array<std::atomic<long>, kCalls> g_calls{};
std::atomic<long> g_steps{0};

// True where the call is to fail; errno is set then.
bool fails(Call call) {
  const int before = errno;
  static const long kill_at = number_of("KILL_AT", 0), fail_at = number_of("FAIL_AT", 0);
  static const long lasts = number_of("FAIL_LASTS", 0);
  static const int error = static_cast<int>(number_of("FAIL_ERRNO", ENOSPC));
  static const char* const wanted = std::getenv("FAIL_CALL");
  if (call < k_open && ++g_steps == kill_at) ::kill(::getpid(), SIGKILL);
  const long n = ++g_calls[call];
  errno = before;
  if (!wanted || fail_at == 0 || std::strcmp(wanted, kNames[call]) != 0) return false;
  if (n != fail_at && !(lasts && n > fail_at)) return false;
  errno = error;
  return true;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

bool ours(int fd) { return fd > STDERR_FILENO; }

__attribute__((destructor)) void tell() {
  const char* file = std::getenv("COUNT_TO");
  if (!file) return;
  const int fd = ::open(file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  for (int i = 0; i < kCalls; ++i)
    ::dprintf(fd, "%s %ld\n", kNames[static_cast<size_t>(i)], g_calls[static_cast<size_t>(i)].load());
  ::close(fd);
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  if (ours(fd) && fails(k_write)) return -1;
  return next<ssize_t(int, const void*, size_t)>("write")(fd, data, bytes);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  if (ours(fd) && fails(k_write)) return -1;
  return next<ssize_t(int, const iovec*, int)>("writev")(fd, parts, count);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) {
  if (fails(k_write)) return -1;
  return next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64")(fd, data, bytes, at);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) { return pwrite64(fd, data, bytes, at); }
ssize_t copy_file_range(int from, off64_t* from_at, int to, off64_t* to_at, size_t bytes, unsigned flags) {
  if (fails(k_copy)) return -1;
  return next<ssize_t(int, off64_t*, int, off64_t*, size_t, unsigned)>("copy_file_range")(from, from_at, to, to_at,
                                                                                          bytes, flags);
}
ssize_t sendfile64(int to, int from, off64_t* at, size_t bytes) {
  if (fails(k_copy)) return -1;
  return next<ssize_t(int, int, off64_t*, size_t)>("sendfile64")(to, from, at, bytes);
}
ssize_t sendfile(int to, int from, off_t* at, size_t bytes) { return sendfile64(to, from, at, bytes); }
int fsync(int fd) { return fails(k_fsync) ? -1 : next<int(int)>("fsync")(fd); }
int fdatasync(int fd) { return fails(k_fsync) ? -1 : next<int(int)>("fdatasync")(fd); }
int rename(const char* from, const char* to) {
  return fails(k_rename) ? -1 : next<int(const char*, const char*)>("rename")(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (fails(k_rename)) return -1;
  return next<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from, to_folder, to, flags);
}
int unlinkat(int folder, const char* name, int flags) {
  return fails(k_unlink) ? -1 : next<int(int, const char*, int)>("unlinkat")(folder, name, flags);
}
int remove(const char* name) { return fails(k_unlink) ? -1 : next<int(const char*)>("remove")(name); }
int mkdir(const char* name, mode_t mode) {
  return fails(k_mkdir) ? -1 : next<int(const char*, mode_t)>("mkdir")(name, mode);
}
int ftruncate64(int fd, off64_t bytes) {
  return fails(k_ftruncate) ? -1 : next<int(int, off64_t)>("ftruncate64")(fd, bytes);
}
int ftruncate(int fd, off_t bytes) { return ftruncate64(fd, bytes); }
int open64(const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if ((flags & O_CREAT) && fails(k_open)) return -1;
  return next<int(const char*, int, ...)>("open64")(name, flags, mode);
}
int open(const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open64(name, flags, mode);
}
void* mmap64(void* at, size_t bytes, int protection, int flags, int fd, off64_t offset) {
  if (fd >= 0 && fails(k_mmap)) return MAP_FAILED;
  return next<void*(void*, size_t, int, int, int, off64_t)>("mmap64")(at, bytes, protection, flags, fd, offset);
}
void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return mmap64(at, bytes, protection, flags, fd, offset);
}

}  // extern "C"

void* operator new(size_t bytes) {
  if (!fails(k_new))
    if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
