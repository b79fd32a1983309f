#pragma once
// The ids of a text file of any size, a part of it at a time.
#include <cstdint>
#include <functional>
#include <vector>

#include "src/text/files/text_file.h"
#include "src/text/tokenizer.h"

namespace fewbit {

// Calls `take` with the ids of each part, in order, and returns how many parts there were. A text of up to `part` bytes
// is one part and has the ids of Tokenizer::encode. A longer one is cut where a document begins, else a line, else a
// character, up to 1 MiB behind each `part` bytes, and every part is tokenized by itself: tokens that would reach over
// a cut are others then. With Special::add the post-processor's ids stand in front of the first part and behind the
// last.
int64_t tokenize_parts(const Tokenizer&, const TextFile&, Special, int64_t part,
                       const std::function<void(std::vector<int32_t>)>& take);

}  // namespace fewbit
