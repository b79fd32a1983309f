// Attention over pages: the rows that attend one by one in the kernel of few rows, the others in tiles in the kernel of
// many; where that one does not take the call, all one by one, and where neither does, in the plain one.
#include "kernels/attention/attention_decode.cuh"
#include "kernels/attention/attention_flash.cuh"
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_plain.cuh"
#include "kernels/attention/cache_place.cuh"
#include "kernels/model/hadamard.h"

namespace fewbit::cuda {
namespace {

// Returns whether the output is turned back already where that is asked.
template <class T, class C>
bool run(CudaState& s, PagedSource<T, C> a, const PagedRows& rows, bool behind_append) {
  const auto kernel_of = [&](int64_t count) {
    KernelProblem problem = problem_of(a, true);
    problem.rows = count, problem.tensor_maps = false;
    return a.chunk > 0 ? Kernel::attention_plain : choose_kernel(problem, s.traits()).kernel;
  };
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    if (kernel_of(1) == Kernel::attention_decode) {
      const int tiles = rows.tiles.data ? static_cast<int>(rows.tiles.numel() / 4) : 0;
      const bool in_tiles = tiles > 0 && !a.sinks && kernel_of(kTileRows + 1) == Kernel::attention_flash;
      if (in_tiles) a.seqs = static_cast<int>(rows.single);
      bool turned = false;
      dispatch_head_dim<C>(a.d, [&](auto dim) {
        constexpr int kDim = decltype(dim)::value;
        if (a.seqs > 0) turned = attention_decode::launch<kDim>(s, a, behind_append, static_cast<int>(rows.splits));
        if constexpr (!kGroupScales<C>)
          if (in_tiles) attention_flash::launch<kDim>(s, a, tiles), turned = false;
      });
      return turned;
    }
  attention_plain::launch(s, a);
  return false;
}

}  // namespace

void attention_paged(Exec& ex, ConstTensorView q, const PagedRows& rows, const KvCache& cache,
                     const AttentionArgs& args, TensorView out) {
  const Shape& shape = cache.k.shape;
  FEWBIT_ASSERT(consistent(cache, q.dtype) && shape[1] == args.kv_heads && head_dim_of(cache) == args.head_dim);
  if (q.numel() == 0) return;
  const CachePlace place = place_of(rows, cache, q.rows());
  FEWBIT_ASSERT(q.rows() < 65536);  // blocks along a grid's third side
  // What is split along the keys, and turned back there, is not in tiles.
  FEWBIT_ASSERT(!args.turn_back || cache.k.dtype == DType::u8);
  bool turned = false;
  dispatch_cache(q.dtype, cache.k.dtype, [&](auto type, auto code) {
    using T = typename decltype(type)::type;
    using C = typename decltype(code)::type;
    PagedSource<T, C> a{};
    set_queries(a, q, args, q.rows(), out);
    a.turn_back = args.turn_back;
    set_cache(a, cache, rows.positions, kPagePositions, place.blocks * kPagePositions);
    a.table_of = place.table_of, a.tables = place.tables, a.blocks = place.blocks;
    a.tiles = static_cast<const int4*>(rows.tiles.data);
    // Of a run of several rows a row's older keys are still being written too.
    const bool steps =
        !rows.runs.empty() && std::ranges::all_of(rows.runs, [](const RowRun& r) { return r.end == r.begin + 1; });
    turned = run(ex.cuda_state(), a, rows, args.behind_append && steps);
  });
  if (args.turn_back && !turned) cuda::hadamard(ex, out, out.row_range(0, 0), args.head_dim);
}

}  // namespace fewbit::cuda
