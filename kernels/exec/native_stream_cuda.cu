#include "kernels/exec/exec_cuda.h"
#include "kernels/exec/native_stream.h"

namespace fewbit {

void* native_stream(Exec& ex) { return ex.on_cuda() ? ex.cuda_state().stream : nullptr; }

}  // namespace fewbit
