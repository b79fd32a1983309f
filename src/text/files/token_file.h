#pragma once
// Windows that are tokenized already: `input_ids` [windows, tokens] (i32 or i64) of a safetensors file.
#include <filesystem>

#include "src/text/corpus.h"

namespace fewbit {

bool is_token_file(const std::filesystem::path&);  // by its name

struct TokenFileShape {
  int64_t windows = 0, tokens = 0;
};
// Error{checkpoint} where there are no such windows of at least 2 tokens.
TokenFileShape token_file_shape(const std::filesystem::path&);

// The first `max_windows` windows (0 = all), of each the first `length` tokens (0 = all, at most what there is).
// Nothing else of the file is read. Error{checkpoint} with the place of an id outside [0, vocab).
Windows read_token_file(const std::filesystem::path&, int64_t max_windows, int64_t length, int64_t vocab);

}  // namespace fewbit
