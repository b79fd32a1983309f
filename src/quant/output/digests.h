#pragma once
// What a checkpoint says of itself, so that `evaluate verify` finds whatever was damaged or changed since it was
// written: where it comes from, what its config says, and a digest of everything.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "formats/written_file.h"
#include "src/model/sources/sources.h"

namespace fewbit {

// JSON: the model's path, its weight files with their digests, and what its own report says of how it was made, and
// from what. "made_from" in the reports of quantize and convert.
std::string origin_json(const std::filesystem::path& model, const std::vector<SourceFile>& sources);

// JSON: config.json of `dir` without what says how weights are stored; "null" where it has none.
std::string model_config_json(const std::filesystem::path& dir);

// digest_of_file() of every file of `dir` but those of `written`, README.md, the report and SHA256SUMS.
std::map<std::string, std::string> companion_digests(const std::filesystem::path& dir,
                                                     const std::vector<WrittenFile>& written);

// SHA256SUMS of every file of `dir`. Those of `written` are not read again.
void write_checksums(const std::filesystem::path& dir, const std::vector<WrittenFile>& written);

}  // namespace fewbit
