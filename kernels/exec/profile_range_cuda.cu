// ProfileRange by NVTX.
#include <nvtx3/nvToolsExt.h>

#include "kernels/exec/profile_range.h"

namespace fewbit {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t d = nvtxDomainCreateA("fewbit");
  return d;
}

}  // namespace

ProfileRange::ProfileRange(const char* name) {
  nvtxEventAttributes_t e{};
  e.version = NVTX_VERSION;
  e.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  e.messageType = NVTX_MESSAGE_TYPE_ASCII;
  e.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &e);
}

ProfileRange::~ProfileRange() { nvtxDomainRangePop(domain()); }

}  // namespace fewbit
