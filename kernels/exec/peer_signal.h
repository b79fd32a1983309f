#pragma once
// Rows and words that a GPU puts into memory of another one (peer_memory.h), in the order of an Exec: by copy engines
// and by the stream itself, so that whatever computes beside keeps all multiprocessors.
#include <cstdint>

#include "kernels/exec/exec.h"

namespace fewbit {

#ifdef FEWBIT_HAS_CUDA
// Whether the driver has the calls.
bool has_stream_words();
// The bytes of `from`, on this device, to where the other's memory is mapped.
void copy_to_peer(Exec&, ConstTensorView from, void* to);
// A word in memory of either GPU gets the value behind all that the Exec was given.
void write_word(Exec&, void* word, uint32_t value);
// What the Exec is given from now on comes when the word, in memory of its own GPU, has reached the value; values may
// run over.
void await_word(Exec&, const void* word, uint32_t value);
#else
inline bool has_stream_words() { return false; }
inline void copy_to_peer(Exec&, ConstTensorView, void*) { bug("a build without CUDA"); }
inline void write_word(Exec&, void*, uint32_t) { bug("a build without CUDA"); }
inline void await_word(Exec&, const void*, uint32_t) { bug("a build without CUDA"); }
#endif

}  // namespace fewbit
