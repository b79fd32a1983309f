#pragma once
// ProfileRange: gives what the host issues while it lives a name in Nsight Systems and Nsight Compute (NVTX, domain
// "fewbit"). Ranges nest. Nothing in a build without CUDA; without a profiler attached a range is two calls that
// return.
namespace fewbit {

class ProfileRange {
 public:
#ifdef FEWBIT_HAS_CUDA
  explicit ProfileRange(const char* name);  // copied
  ~ProfileRange();
#else
  explicit ProfileRange(const char*) {}
  ~ProfileRange() {}  // written out: a range that is never read again is no unused variable
#endif
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace fewbit
