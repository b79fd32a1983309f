#pragma once
// Corpus: text or tokens -> windows of equal length.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/text/tokenizer.h"

namespace fewbit {

struct Windows {
  int64_t count = 0, length = 0;
  std::vector<int32_t> ids;  // [count, length]
  std::string source;        // for reports: path or "builtin"
};

std::string read_text(const std::filesystem::path& path);  // Error{io}; Error{checkpoint} on an empty file

// The whole text tokenized once with BOS in front (where the tokenizer has one), cut into non-overlapping
// windows from the start; the tail is dropped. Error{usage} when not one window fits, with the token count.
// `max_windows` 0 = all.
Windows cut_windows(const Tokenizer&, const std::string& text, int64_t length, int64_t max_windows,
                    const std::string& source);

// The same for ids that are there already.
Windows cut_windows(std::vector<int32_t> ids, int64_t length, int64_t max_windows, const std::string& source);

// The `input_ids` [n, t] (i32 or i64) of a safetensors file, as n windows as they are.
Windows windows_from_ids(std::vector<int32_t> ids, int64_t count, int64_t length, std::string source);

struct CalibText {
  std::string name;  // path or "builtin/prose.txt"
  std::string text;
  std::filesystem::path file{};  // instead of `text`: stays on disk, windows are drawn by offsets
};
// A file read whole where it has at most `room` bytes; left on disk otherwise.
CalibText calibration_text(const std::filesystem::path& path, int64_t room);

// Calibration draw (docs/calibration.md): per text, windows as above, chosen without replacement by a generator keyed
// by (seed, content); of a text that stays on disk as src/text/files/offset_draw.h has it, which `source` then says.
// The samples are split evenly over the files, earlier files taking the rest. Fewer than `samples` windows in a file:
// all of it, and `shortfall` says so in words ("" otherwise).
Windows draw_calibration(const Tokenizer&, const std::vector<CalibText>& texts, int64_t samples, int64_t length,
                         uint64_t seed, std::string* shortfall);

// Where the built-in data lies: found from the executable (<prefix>/share/fewbit), then from the source tree.
// Error{io} naming the places looked at.
std::filesystem::path builtin_data_dir();
std::vector<CalibText> builtin_calibration();
std::string builtin_evaluation();  // all files of evaluation/, joined by a newline, in name order
std::filesystem::path builtin_model_dir();

}  // namespace fewbit
