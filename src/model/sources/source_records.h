#pragma once
// Records of files that were read: in a folder, one JSON file for each model. A record that is torn, unreadable or of
// another state of the file is none; one that cannot be written is left out, because it only saves time.
#include "src/model/sources/sources.h"

namespace fewbit {

// The state of a file without digest and findings. Error{io} where it is gone.
SourceFile state_of_file(const std::filesystem::path&);
bool same_state(const SourceFile&, const SourceFile&);

// What `folder` has of the files of `model`; empty without one.
std::vector<SourceFile> recorded_sources(const std::filesystem::path& folder, const std::filesystem::path& model);
// Also removes the temporary files of killed runs: of processes that live no more, unwritten for an hour.
void record_sources(const std::filesystem::path& folder, const std::filesystem::path& model,
                    const std::vector<SourceFile>&);

}  // namespace fewbit
