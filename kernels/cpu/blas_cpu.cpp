// Loads OpenBLAS and sets it up, once in a process. Linked, it would start its own threads before main() does anything:
// they are never used here, and one that finds no memory for its buffer (ulimit -v) asks for it until the process is
// killed, because the end of the program waits for it.
#include "kernels/cpu/blas_cpu.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/tile_product.h"
#include "src/core/error.h"
#include "src/core/parallel.h"

namespace fewbit::blas {
namespace {

// A variable of the environment with another value while this lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value, 1);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// The library of the machine, else the one that this was built with.
void* open_library() {
  const Variable one("OPENBLAS_NUM_THREADS", "1");  // is read while the library is loaded
  if (void* handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL)) return handle;
  const std::string why = dlerror();
  if (void* handle = dlopen(FEWBIT_OPENBLAS_DIR "/libopenblas.so.0", RTLD_NOW | RTLD_LOCAL)) return handle;
  fail(ErrorKind::io, why + ": products on the CPU need OpenBLAS; install it (Debian: libopenblas0), or name its " +
                          "folder in LD_LIBRARY_PATH, or give the process more address space (ulimit -v)");
}

struct Library {
  void* handle = open_library();
  Functions functions{};
  const char* (*core)() = nullptr;
  // Of OpenBLAS built with DYNAMIC_ARCH, and of all since 0.3; null elsewhere.
  void (*choose_kernels)() = nullptr;
  void (*forget_kernels)() = nullptr;
  void* (*take_buffer)(int) = nullptr;
  void (*give_buffer)(void*) = nullptr;

  template <class Function>
  void set(Function*& pointer, const char* name, bool optional = false) {
    pointer = reinterpret_cast<Function*>(dlsym(handle, name));
    if (!pointer && !optional)
      fail(ErrorKind::io, std::string("libopenblas.so.0 has no ") + name +
                              ": it was built without CBLAS or LAPACK; install one that has both");
  }

  void set_all() {
#define FEWBIT_BLAS_SET(name) set(functions.name, #name);
    FEWBIT_BLAS_FUNCTIONS(FEWBIT_BLAS_SET)
#undef FEWBIT_BLAS_SET
    set(core, "openblas_get_corename");
    set(choose_kernels, "gotoblas_dynamic_init", true);
    set(forget_kernels, "gotoblas_dynamic_quit", true);
    set(take_buffer, "blas_memory_alloc", true);
    set(give_buffer, "blas_memory_free", true);
    int (*threads)() = nullptr;
    void (*set_threads)(int) = nullptr;
    set(threads, "openblas_get_num_threads");
    set(set_threads, "openblas_set_num_threads");
    if (threads() != 1) set_threads(1);  // somebody else has loaded it
  }
};

// OpenBLAS 0.3.21 chooses its kernels by the processor's model number. A model younger than the release gets SSE3 code,
// three to four times slower than what the machine can do. This chooses again by instruction set, where that is better.
void choose_kernels_by_instruction_set(const Library& library) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (!library.choose_kernels || !library.forget_kernels || std::getenv("OPENBLAS_CORETYPE")) return;
  const std::string chosen = library.core();
  if (chosen != "Prescott" && chosen != "Core2" && chosen != "Nehalem" && chosen != "Sandybridge") return;
  __builtin_cpu_init();
  const char* better = __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") ? "SkylakeX"
                       : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")        ? "Haswell"
                                                                                                : nullptr;
  if (!better) return;
  const Variable type("OPENBLAS_CORETYPE", better);
  library.forget_kernels();
  library.choose_kernels();
#else
  (void)library;
#endif
}

bool limited(int resource) {
  rlimit limit{};
  return ::getrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

// OpenBLAS maps a buffer for each thread that multiplies at one time, and asks without end where it gets none. Where a
// limit of the process may refuse one, all are made now: there is room for them, or this says that there is not, and
// plans count with what is left.
void make_buffers(const Library& library) {
  constexpr size_t kBuffer = (size_t{128} << 20) + (64 << 10);  // BUFFER_SIZE of OpenBLAS 0.3, and what lies around it
  if (!library.take_buffer || !library.give_buffer || (!limited(RLIMIT_AS) && !limited(RLIMIT_DATA))) return;
  std::vector<void*> taken;
  const int threads = thread_count();
  for (int i = 0; i < threads; ++i) {
    void* probe = ::mmap(nullptr, kBuffer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED) break;
    ::munmap(probe, kBuffer);
    taken.push_back(library.take_buffer(0));
  }
  for (void* buffer : taken) library.give_buffer(buffer);
  if (static_cast<int>(taken.size()) < threads)
    fail(ErrorKind::memory, "OpenBLAS maps 129 MiB for each of " + std::to_string(threads) +
                                " threads, and a limit of this process has room for " + std::to_string(taken.size()) +
                                " of them; raise it (ulimit -v, ulimit -d), or set FEWBIT_THREADS to fewer threads");
}

const Library& library() {
  static const Library loaded = [] {
    Library l;
    l.set_all();
    choose_kernels_by_instruction_set(l);
    make_buffers(l);
    return l;
  }();
  return loaded;
}

}  // namespace

const Functions& functions() { return library().functions; }

void use_one_thread() { library(); }

}  // namespace fewbit::blas

void fewbit::load_cpu_products() { blas::use_one_thread(); }

std::string fewbit::cpu_arithmetic() { return std::string("OpenBLAS ") + blas::library().core(); }

std::string fewbit::cpu_bf16_products() {
  switch (cpu::tile_unit()) {
    case cpu::TileUnit::amx:
      return "AMX";
    case cpu::TileUnit::avx512:
      return "AVX512-BF16";
    case cpu::TileUnit::none:
      break;
  }
  return "OpenBLAS";
}

fewbit::DType fewbit::usual_dtype(bool on_gpu) {
  return on_gpu || cpu::tile_unit() != cpu::TileUnit::none ? DType::bf16 : DType::f32;
}

std::string fewbit::device_and_products(const std::string& device, bool on_cuda) {
  return on_cuda ? device : device + " with bf16 by " + cpu_bf16_products();
}
