#include <dlfcn.h>

#include <string>

#include "kernels/exec/cuda_libraries.h"
#include "src/core/error.h"

namespace fewbit {

#define FEWBIT_DEFINE_POINTER(name) decltype(&::name) name = nullptr;
FEWBIT_CUBLAS_FUNCTIONS(FEWBIT_DEFINE_POINTER)
FEWBIT_CUBLASLT_FUNCTIONS(FEWBIT_DEFINE_POINTER)
FEWBIT_CUSOLVER_FUNCTIONS(FEWBIT_DEFINE_POINTER)
#undef FEWBIT_DEFINE_POINTER

namespace {

class Library {
 public:
  Library(const char* name, int major) : file_(std::string(name) + ".so." + std::to_string(major)) {
    handle_ = dlopen(file_.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle_) return;
    const std::string why = dlerror();
    handle_ = dlopen((FEWBIT_CUDA_LIBRARY_DIR "/" + file_).c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!handle_)
      fail(ErrorKind::device, why + ": a GPU needs cuBLAS and cuSOLVER of CUDA " +
                                  std::to_string(CUDART_VERSION / 1000) +
                                  "; install them, or name their folder in LD_LIBRARY_PATH, or use --device cpu");
  }

  template <class Function>
  void set(Function*& pointer, const char* name) const {
    pointer = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (!pointer)
      fail(ErrorKind::device, file_ + " has no " + name + ": it is older than this build's CUDA; install a newer one");
  }

 private:
  std::string file_;
  void* handle_ = nullptr;  // kept: the pointers are used to the process's end
};

// The name as the library exports it: the headers define some names as newer ones (cublasCreate as cublasCreate_v2).
#define FEWBIT_EXPORTED(name) #name
#define FEWBIT_SET(name) library.set(name, FEWBIT_EXPORTED(name));

bool load_all() {
  {
    const Library library("libcublas", CUBLAS_VER_MAJOR);
    FEWBIT_CUBLAS_FUNCTIONS(FEWBIT_SET)
  }
  {
    const Library library("libcublasLt", CUBLAS_VER_MAJOR);
    FEWBIT_CUBLASLT_FUNCTIONS(FEWBIT_SET)
  }
  {
    const Library library("libcusolver", CUSOLVER_VER_MAJOR);
    FEWBIT_CUSOLVER_FUNCTIONS(FEWBIT_SET)
  }
  return true;
}

}  // namespace

void load_cuda_libraries() {
  static const bool loaded = load_all();
  (void)loaded;
}

}  // namespace fewbit
