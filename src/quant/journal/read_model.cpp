#include "src/quant/journal/read_model.h"

#include "src/core/error.h"
#include "src/core/strings.h"

namespace fewbit {

void read_model(const Checkpoint& c, const RunFolder& folder, const std::filesystem::path& user, QuantJob& job,
                SourcesAhead* ahead) {
  SourceReading reading{.run = folder.dir(), .user = user, .rehash = job.rehash};
  if (job.progress) reading.progress = [&](double f) { job.progress("reading the model", f); };
  job.sources = ahead ? ahead->take(reading.progress) : read_sources(c.dir, reading);
  const std::string lines = not_finite_lines(c.dir, job.sources);
  if (lines.empty()) return;
  if (!job.allow_nonfinite)
    fail(ErrorKind::checkpoint, lines + "\nget these files anew, or quantize them as they are with --allow-nonfinite");
  add_note(job.note, lines);
}

}  // namespace fewbit
