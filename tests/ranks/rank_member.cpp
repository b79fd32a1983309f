// One rank of the tests of src/ranks, started by mpirun: `rank_member CASE`. Prints a line, or fails as the programs
// do.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kernels/exec/exec_point.h"
#include "kernels/quantize/factor.h"
#include "src/calib/peer_rows.h"
#include "src/core/parallel.h"
#include "src/quant/row_share.h"
#include "tools/cli/options.h"
#include "tools/cli/ranks.h"

namespace fewbit {
namespace {

void expect(bool right, const std::string& what) {
  if (!right) fail(ErrorKind::numeric, "wrong: " + what);
}

// What rank r holds at i: values whose sum in f32 depends on its order.
float value(int r, int64_t i) { return (r % 2 ? -1.f : 1.f) * 1e7f / static_cast<float>(i % 97 + 1) + 0.37f * r; }

Tensor filled(int r, Shape shape) {
  Tensor t = Tensor::host(DType::f32, shape);
  for (int64_t i = 0; i < t.numel(); ++i) t.as<float>()[i] = value(r, i);
  return t;
}

void dawdle(int r, int round) { std::this_thread::sleep_for(std::chrono::milliseconds((r * 7 + round * 5) % 11)); }

void sums(const Ranks& ranks, Exec& ex) {
  for (const int64_t n : {0, 1, 3, 5, 1000, 300001})
    for (int round = 0; round < 4; ++round) {
      dawdle(ranks.rank(), round);
      const Tensor t = filled(ranks.rank(), {n});
      ranks.all_reduce_sum(ex, t);
      for (int64_t i = 0; i < n; ++i) {
        float sum = value(0, i);
        for (int r = 1; r < ranks.size(); ++r) sum += value(r, i);
        expect(std::memcmp(&sum, t.as<float>() + i, sizeof sum) == 0, fmt::format("sum of {}, at {}", n, i));
      }
    }
}

// Each rank sends every other two messages of one tag and one of another, received the other way round.
void messages(const Ranks& ranks, Exec& ex) {
  std::vector<Message> under_way;
  std::vector<Tensor> sent;
  for (int i = 0; i < 3; ++i) sent.push_back(filled(10 * ranks.rank() + i, {2048, 33}));
  for (int to = 0; to < ranks.size(); ++to)
    if (to != ranks.rank())
      for (int i = 0; i < 3; ++i)
        under_way.push_back(ranks.start_send(ex, sent[static_cast<size_t>(i)], to, i == 2 ? 5 : 4));
  for (int from = 0; from < ranks.size(); ++from) {
    if (from == ranks.rank()) continue;
    for (const int i : {2, 0, 1}) {
      const Tensor t = Tensor::host_zeros(DType::f32, {2048, 33});
      Message m = ranks.start_receive(ex, t, from, i == 2 ? 5 : 4);
      while (!m.done()) std::this_thread::yield();
      expect(std::memcmp(t.as<float>(), filled(10 * from + i, {2048, 33}).as<float>(),
                         static_cast<size_t>(t.bytes())) == 0,
             fmt::format("message {} from {}", i, from));
    }
  }
  for (Message& m : under_way) m.wait();
}

void rows(const Ranks& ranks, Exec& ex) {
  constexpr int64_t kCols = 129;
  for (const int64_t n : {1, 3, 10, 515}) {
    const std::vector<int64_t> begin = even_bands(n, ranks.size());
    const int64_t first = begin[static_cast<size_t>(ranks.rank())], last = begin[static_cast<size_t>(ranks.rank()) + 1];
    const Tensor all = Tensor::host_zeros(DType::f32, {n, kCols}), right = filled(3, {n, kCols});
    const auto same = [&] {
      return std::memcmp(all.as<float>(), right.as<float>(), static_cast<size_t>(all.bytes())) == 0;
    };
    for (int root = 0; root < ranks.size(); ++root) {
      ranks.gather_rows(ex, right.view().row_range(first, last), ranks.rank() == root ? all.view() : TensorView{},
                        begin, root);
      expect(ranks.rank() != root || same(), fmt::format("{} rows gathered by {}", n, root));
    }
    std::memset(all.view().data, 0, static_cast<size_t>(all.bytes()));
    ex.copy(right.view().row_range(first, last), all.view().row_range(first, last));
    ranks.all_gather_rows(ex, all, begin);
    expect(same(), fmt::format("{} rows gathered by all", n));
    for (int root = 0; root < ranks.size(); ++root) {
      const Tensor t = filled(ranks.rank() == root ? 40 + root : 0, {n, kCols});
      ranks.broadcast(ex, t, root);
      expect(std::memcmp(t.as<float>(), filled(40 + root, {n, kCols}).as<float>(), static_cast<size_t>(t.bytes())) == 0,
             fmt::format("{} rows from {}", n, root));
    }
  }
}

// Tensors of some sizes from each rank in turn, together.
void several(const Ranks& ranks, Exec& ex) {
  const std::vector<Shape> shapes{{7, 3}, {0}, {1}, {515, 129}};
  for (int root = 0; root < ranks.size(); ++root) {
    std::vector<Tensor> tensors;
    std::vector<TensorView> places;
    for (const Shape& s : shapes) {
      tensors.push_back(ex.to_device(filled(ranks.rank() == root ? 60 + root : 0, s)));
      places.push_back(tensors.back());
    }
    ranks.broadcast(ex, places, root);
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Tensor came = ex.to_host(tensors[i]), right = filled(60 + root, shapes[i]);
      expect(std::memcmp(came.view().data, right.view().data, static_cast<size_t>(right.bytes())) == 0,
             fmt::format("tensor {} of several from {}", i, root));
    }
  }
}

void collectives(const Ranks& ranks) {
  Exec ex = Exec::cpu();
  expect(ranks.node_rank() == ranks.rank() && ranks.node_size() == ranks.size(), "place on this machine");
  sums(ranks, ex);
  several(ranks, ex);
  messages(ranks, ex);
  rows(ranks, ex);
  ranks.barrier();
}

// A factor and a shift of targets that the ranks make together have the bits of those that one makes alone.
void factors(const Ranks& ranks) {
  Exec ex = Exec::cpu();
  const QuantSpec spec;
  const RowShare rows(ex, ranks, 64 * ranks.size(), spec);
  for (const int64_t n : {70, 256, 700, 1300}) {
    const Tensor x = filled(1, {n, n}), h = Tensor::host(DType::f32, {n, n});
    for (int64_t i = 0; i < x.numel(); ++i) x.as<float>()[i] = std::sin(static_cast<float>(i % 7919));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        h.as<float>()[i * n + j] = x.as<float>()[i * n + j] + x.as<float>()[j * n + i] + (i == j ? 4.f * n : 0.f);
    const auto same = [&](const Tensor& a, const Tensor& b, const char* what) {
      expect(std::memcmp(a.as<float>(), b.as<float>(), static_cast<size_t>(a.bytes())) == 0,
             fmt::format("{} of {}", what, n));
    };
    for (const Precision p : {Precision::f32, Precision::f64}) {
      const Tensor alone = Tensor::host(DType::f32, {n, n}), shared = Tensor::host(DType::f32, {n, n});
      expect(factorize(ex, h, 1, p, alone).ok() && factorize(ex, h, 1, p, shared, rows.panels()).ok(), "a factor");
      same(alone, shared, "factor");
    }
    const Tensor alone = Tensor::host(DType::f32, {n, n}), shared = Tensor::host(DType::f32, {n, n});
    const bool shifted = shift_targets(ex, x, x, h, 1, {}, 1, alone).ok() &&
                         shift_targets(ex, x, x, h, 1, {}, 1, shared, rows.panels()).ok();
    expect(shifted, "a shift");
    same(alone, shared, "shift");
    h.as<float>()[n * n - 1] = -1e9f;  // all see the same failure
    const int64_t pivot = factorize(ex, h, 1, Precision::f32, alone).pivot;
    expect(pivot > 0 && factorize(ex, h, 1, Precision::f32, shared, rows.panels()).pivot == pivot, "a pivot");
  }
}

// Rows that two GPUs copy into each other's memory, whichever comes first: every round is looked at before its place is
// taken by another one.
void peer_rows(const Ranks& ranks, Exec& ex) {
  constexpr int64_t kRounds = 40, kRows = 515, kCols = 129, kFew = 3;
  const int64_t first = PeerRows::taken(DType::f32, kRows, kCols);
  const std::unique_ptr<PeerRows> peer = PeerRows::between(ranks, ex, first + PeerRows::taken(DType::f32, kFew, kCols));
  if (!peer) return fmt::print("rows by the collective calls\n");
  Exec way = Exec::cuda(ex.device().index);
  const auto of = [](int rank, int64_t round) { return filled(static_cast<int>(100 * rank + round), {kRows, kCols}); };
  std::vector<Tensor> seen;
  for (int64_t round = 0; round < kRounds; ++round) {
    dawdle(ranks.rank(), static_cast<int>(round));
    const Tensor mine = ex.to_device(of(ranks.rank(), round));
    const int place = static_cast<int>(round % PeerRows::kRounds);
    wait_for(way, point_of(ex));
    peer->exchange(way, place, std::vector<PeerRows::Part>{{mine, 0}, {mine.view().row_range(0, kFew), first}});
    wait_for(ex, point_of(way));
    seen.push_back(ex.alloc(DType::f32, {kRows + kFew, kCols}));
    ex.copy(peer->place(place, 0, DType::f32, {kRows, kCols}), seen.back().view().row_range(0, kRows));
    ex.copy(peer->place(place, first, DType::f32, {kFew, kCols}), seen.back().view().row_range(kRows, kRows + kFew));
  }
  for (int64_t round = 0; round < kRounds; ++round) {
    const Tensor right = of(1 - ranks.rank(), round), here = ex.to_host(seen[static_cast<size_t>(round)]);
    const auto bytes = static_cast<size_t>(right.bytes()), few = static_cast<size_t>(kFew * kCols) * sizeof(float);
    expect(std::memcmp(here.as<float>(), right.as<float>(), bytes) == 0 &&
               std::memcmp(here.as<float>() + kRows * kCols, right.as<float>(), few) == 0,
           fmt::format("rows of round {}", round));
  }
  way.sync();
  ranks.barrier();
  fmt::print("rows by copy engines\n");
}

// The collective calls on tensors of a GPU give the bits that they give through host memory.
void gpus(const Ranks& ranks) {
  Exec ex = Exec::cuda(ranks.node_rank());
  for (const int64_t n : {1, 3, 1000, 300001}) {
    const Tensor host = filled(ranks.rank(), {n}), t = ex.to_device(host);
    ranks.all_reduce_sum(ex, t);
    ranks.all_reduce_sum(ex, host);
    expect(std::memcmp(ex.to_host(t).as<float>(), host.as<float>(), static_cast<size_t>(host.bytes())) == 0,
           fmt::format("sum of {}", n));
  }
  for (const int64_t n : {1, 3, 515}) {
    const std::vector<int64_t> begin = even_bands(n, ranks.size());
    const int64_t first = begin[static_cast<size_t>(ranks.rank())], last = begin[static_cast<size_t>(ranks.rank()) + 1];
    const Tensor right = filled(3, {n, 129}), all = ex.alloc_zeros(DType::f32, {n, 129});
    ex.copy(right.view().row_range(first, last), all.view().row_range(first, last));
    ranks.all_gather_rows(ex, all, begin);
    for (int root = 0; root < ranks.size(); ++root) {
      expect(std::memcmp(ex.to_host(all).as<float>(), right.as<float>(), static_cast<size_t>(right.bytes())) == 0,
             fmt::format("{} rows", n));
      if (ranks.rank() != root) ex.zero(all);
      ranks.broadcast(ex, all, root);
    }
  }
  const RowShare rows(ex, ranks, 64 * ranks.size() + 7, {});  // the last one has a few rows more
  const Tensor right = filled(5, {64 * ranks.size() + 7, 33});
  const ConstTensorView mine = rows.mine(right);
  const Tensor all = rows.whole(ex, ex.to_device(mine));
  expect(!rows.alone() && mine.rows() < right.rows() && all.rows() == right.rows(), "rows of a linear");
  expect(std::memcmp(ex.to_host(all).as<float>(), right.as<float>(), static_cast<size_t>(right.bytes())) == 0,
         "rows of a linear, gathered");
  several(ranks, ex);
  peer_rows(ranks, ex);
  const std::string by = ranks.device_library();
  fmt::print("tensors by {}\n", by.empty() ? "host memory" : by);
}

void short_message(const Ranks& ranks) {
  Exec ex = Exec::cpu();
  const Tensor t = Tensor::host_zeros(DType::bf16, {ranks.rank() == 0 ? 10 : 11});
  if (ranks.rank() == 0) ranks.send(ex, t, 1);
  if (ranks.rank() == 1) ranks.receive(ex, t, 0);
  ranks.barrier();
}

void last_fails(const Ranks& ranks) {
  if (ranks.rank() == ranks.size() - 1) fail(ErrorKind::checkpoint, "model.safetensors: made to fail");
  ranks.barrier();
}

void last_is_killed(const Ranks& ranks) {
  if (ranks.rank() == ranks.size() - 1) std::raise(SIGKILL);
  ranks.barrier();
}

void all_fail(const Ranks&) { fail(ErrorKind::usage, "refused by all"); }

// As many threads as the ranks together have processors for.
void threads(const Ranks& ranks) {
  Exec ex = Exec::cpu();
  const Tensor t = Tensor::host(DType::f32, {1});
  t.as<float>()[0] = static_cast<float>(ranks.threads());
  ranks.all_reduce_sum(ex, t);
  const int most = std::max(ranks.size(), static_cast<int>(std::thread::hardware_concurrency()));
  expect(ranks.alone() || (ranks.threads() >= 1 && t.as<float>()[0] <= most), "threads of all ranks");
}

// As where a batch system holds a job for a while.
void all_are_stopped(const Ranks& ranks) {
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    ::usleep(500'000);
    ::kill(self, SIGCONT);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
  ::waitpid(child, nullptr, 0);
  collectives(ranks);
}

const std::map<std::string, std::function<void(const Ranks&)>> kCases = {
    {"collectives", collectives}, {"short-message", short_message},
    {"last-fails", last_fails},   {"last-is-killed", last_is_killed},
    {"all-fail", all_fail},       {"all-are-stopped", all_are_stopped},
    {"threads", threads},         {"gpus", gpus},
    {"factors", factors}};

int run(const std::string& name) {
  const Launch launch = launch_from_environment();
  if (name == "last-is-killed") cli::install_stop_handler();  // as `quantize`, whose ranks watch each other
  try {
    cli::join_ranks(launch, "rank_member", name, std::vector<std::string>{name});
    kCases.at(name)(cli::the_ranks());
    fmt::print("rank {} of {}: ok\n", cli::the_ranks().rank(), cli::the_ranks().size());
    cli::leave_ranks();
    return 0;
  } catch (const Error& e) {
    return cli::report_failure(launch, "rank_member", e.what(), e.exit_code());
  }
}

}  // namespace
}  // namespace fewbit

int main(int argc, char** argv) { return argc == 2 ? fewbit::run(argv[1]) : 2; }
