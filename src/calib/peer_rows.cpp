#include "src/calib/peer_rows.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/exec/peer_signal.h"
#include "src/ranks/exchange.h"
#include "src/ranks/memory_of_two.h"

namespace fewbit {
namespace {

bool turned_off() {
  const char* copies = std::getenv("FEWBIT_PEER_COPIES");
  return copies && std::string_view(copies) == "0";
}

void* in(void* memory, int64_t at) { return static_cast<char*>(memory) + at; }

}  // namespace

std::unique_ptr<PeerRows> PeerRows::between(const Ranks& ranks, Exec& ex, int64_t bytes) {
  if (ranks.size() != 2 || !true_for_all(ranks, ex.on_cuda() && !turned_off() && has_stream_words())) return nullptr;
  std::string why;  // NCCL does it then, which needs no line
  std::unique_ptr<PeerMemory> memory = memory_of_two(ranks, ex, kWords + kRounds * bytes, &why);
  if (!memory) return nullptr;
  return std::unique_ptr<PeerRows>(new PeerRows(std::move(memory), ex.device(), bytes));
}

TensorView PeerRows::place(int round, int64_t at, DType dtype, const Shape& shape) const {
  const TensorView v{in(memory_->mine(), begin(round) + at), dtype, shape, device_};
  FEWBIT_ASSERT(at + v.bytes() <= bytes_);
  return v;
}

void PeerRows::exchange(Exec& way, int round, std::span<const Part> parts) {
  void *const free = in(memory_->mine(), 0), *const there = in(memory_->mine(), kAlign);
  const uint32_t now = ++exchanges_;
  write_word(way, in(memory_->theirs(), 0), now);
  await_word(way, free, now);
  for (const Part& p : parts) {
    FEWBIT_ASSERT(p.at + p.rows.bytes() <= bytes_);
    if (p.rows.bytes() > 0) copy_to_peer(way, p.rows, in(memory_->theirs(), begin(round) + p.at));
  }
  write_word(way, in(memory_->theirs(), kAlign), now);
  await_word(way, there, now);
}

}  // namespace fewbit
