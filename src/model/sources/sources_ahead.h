#pragma once
// Reads a model's files (sources.h) on a thread of its own, while a GPU is made ready and the run is planned.
#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <vector>

#include "src/model/sources/sources.h"

namespace fewbit {

class SourcesAhead {
 public:
  // Begins to read as `reading` says, but for its progress; nothing is recorded before take().
  SourcesAhead(std::filesystem::path model, SourceReading reading);
  ~SourcesAhead();  // what is not read yet is not read
  SourcesAhead(const SourcesAhead&) = delete;
  SourcesAhead& operator=(const SourcesAhead&) = delete;

  bool ready() const;  // take() would not wait, or has been called

  // What read_sources() returns, once it is there, recorded in the same folders; the part that is done is told
  // meanwhile, to a function that may end it all by throwing. Rethrows its errors. To be called once.
  std::vector<SourceFile> take(const std::function<void(double)>& progress);

 private:
  const std::filesystem::path model_;
  const SourceReading reading_;
  std::atomic<bool> stop_ = false;
  std::atomic<double> done_ = 0;
  std::future<std::vector<SourceFile>> files_;
};

}  // namespace fewbit
