#pragma once
// The draw from a text that is too large to be tokenized whole. The file is cut into cells of kCellBytes bytes for each
// token of a window; cells are chosen without replacement by a generator keyed by (seed, digest of the file). A window
// begins at the first document, else line, else character of the first quarter of its cell and is tokenized on its own,
// with BOS in front where the tokenizer has one. A cell with less text behind it than a window gives its place to the
// next one. Asking for more windows keeps what fewer would have given. Text of up to 6 bytes a token gives windows
// that have nothing in common.
#include "src/text/corpus.h"
#include "src/text/files/text_file.h"

namespace fewbit {

inline constexpr int64_t kCellBytes = 8;

// How many windows of `length` tokens there are to draw: an upper bound, as the file is not read.
int64_t offset_windows(const TextFile&, int64_t length);
// Appends `wanted` windows of `out.length` tokens and returns how many there were.
int64_t draw_by_offsets(const Tokenizer&, const TextFile&, uint64_t seed, int64_t wanted, Windows& out);

}  // namespace fewbit
