#include "src/model/sources/sources_ahead.h"

#include <chrono>
#include <utility>

#include "src/core/error.h"
#include "src/model/sources/source_records.h"

namespace fewbit {

SourcesAhead::SourcesAhead(std::filesystem::path model, SourceReading reading)
    : model_(std::move(model)), reading_(std::move(reading)) {
  files_ = std::async(std::launch::async, [this] {
    SourceReading r = reading_;
    r.record = false;
    r.progress = [this](double part) { done_ = part; };
    r.stop = &stop_;
    return read_sources(model_, r);
  });
}

SourcesAhead::~SourcesAhead() {
  stop_ = true;
  if (files_.valid()) files_.wait();
}

bool SourcesAhead::ready() const {
  return !files_.valid() || files_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::vector<SourceFile> SourcesAhead::take(const std::function<void(double)>& progress) {
  constexpr auto kOften = std::chrono::milliseconds(50);
  while (files_.wait_for(kOften) != std::future_status::ready)
    if (progress) progress(done_);
  std::vector<SourceFile> sources = files_.get();
  record_sources(reading_.run, model_, sources);
  record_sources(reading_.user, model_, sources);
  return sources;
}

}  // namespace fewbit
