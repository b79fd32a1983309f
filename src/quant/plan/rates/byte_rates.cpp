// How fast bytes move: out of the model's files, into the folder of OUT, through memory, over the link to a device; and
// how fast they become what a method takes, and codes what is written.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <future>

#include "src/core/digest.h"
#include "src/core/file_io.h"
#include "src/core/files/sha256.h"
#include "src/core/hash.h"
#include "src/quant/plan/rates/rate_probe.h"
#include "src/run/upload_as.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t{1} << 20;        // read or written at a time
constexpr int64_t kMostOnDisk = int64_t{64} << 20;  // of a probe
constexpr int64_t kInMemory = int64_t{16} << 20;
constexpr int64_t kLeast = int64_t{4} << 20;  // less says more of the first access than of a rate

const MappedFile& largest_file(const Checkpoint& c) {
  const std::vector<MappedFile>& files = c.store.index().files;
  return *std::max_element(files.begin(), files.end(),
                           [](const MappedFile& a, const MappedFile& b) { return a.size() < b.size(); });
}

// Whether the page at `begin` is in memory.
bool is_resident(const File& file, int64_t begin, size_t page) {
  void* at = ::mmap(nullptr, page, PROT_READ, MAP_SHARED, file.fd(), begin);
  if (at == MAP_FAILED) return false;
  unsigned char in_memory = 0;
  const bool told = ::mincore(at, page, &in_memory) == 0;
  ::munmap(at, page);
  return told && (in_memory & 1) != 0;
}

// The share of the files that is in memory, by samples; 0 where the system does not tell.
double resident_share(const std::vector<MappedFile>& files) {
  constexpr int64_t kSamples = 64;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  double bytes = 0, here = 0;
  for (const MappedFile& mapped : files) {
    const int64_t pages = mapped.size() / page, asked = std::min(pages, kSamples);
    if (asked == 0) continue;
    const File file = File::read(mapped.path());
    int found = 0;
    for (int64_t i = 0; i < asked; ++i) found += is_resident(file, i * pages / asked * page, static_cast<size_t>(page));
    bytes += static_cast<double>(mapped.size());
    here += static_cast<double>(mapped.size()) * found / static_cast<double>(asked);
  }
  return bytes > 0 ? here / bytes : 0;
}

// A piece from the middle of the model's largest file that the system is told to forget first.
double read_seconds(const MappedFile& mapped, double budget) {
  const File file = File::read(mapped.path());
  const int64_t size = file.size(), most = std::clamp(size / 8, std::min(size, kLeast), kMostOnDisk);
  const int64_t begin = (size - most) / 2 / kPiece * kPiece;
  ::posix_fadvise(file.fd(), begin, most, POSIX_FADV_DONTNEED);
  ::posix_fadvise(file.fd(), begin, most, POSIX_FADV_SEQUENTIAL);
  std::vector<char> room(static_cast<size_t>(kPiece));
  int64_t done = 0;
  const Stopwatch t;
  while (done < most && t.seconds() < budget) {
    const int64_t n = std::min(kPiece, most - done);
    file.read_at(begin + done, room.data(), n);
    done += n;
  }
  return done > 0 ? t.seconds() / static_cast<double>(done) : 0;
}

// A file without a name, gone with its descriptor.
File nameless(const fs::path& folder) {
  File f = File::with_flags(folder, O_TMPFILE | O_RDWR);
  if (f.open()) return f;
  std::string name = (folder / ".fewbit-rate-XXXXXX").string();  // a file system without O_TMPFILE
  const int made = ::mkostemp(name.data(), O_CLOEXEC);
  if (made >= 0) ::close(made);
  f = File::with_flags(name, O_RDWR);
  ::unlink(name.c_str());
  if (!f.open()) f.refuse("cannot make a file to measure how fast OUT can be written");
  return f;
}

// Seconds for a byte: written with all that makes it safe where `safe`, else read again.
double write_seconds(const fs::path& folder, int64_t most, bool safe, double budget) {
  rlimit limit{};  // of a file's size
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(most))
    most = static_cast<int64_t>(limit.rlim_cur) / 2;
  File file = nameless(folder);
  const std::string bytes(static_cast<size_t>(kPiece), '\x5a');
  std::vector<char> room(bytes.size());
  int64_t done = 0;
  const Stopwatch t;
  for (; done < most && t.seconds() < budget; done += kPiece) file.append_whole(bytes);
  if (safe)
    file.sync();
  else
    for (int64_t at = 0; at < done; at += kPiece) file.read_at(at, room.data(), kPiece);
  return t.seconds() / static_cast<double>(done);
}

// A little that is written and made safe, as a journal's record: the median of some.
double sync_seconds(const fs::path& folder, double budget) {
  File file = nameless(folder);
  std::vector<double> times;
  for (double all = 0; times.size() < 5 && all < budget; all += times.back()) {
    const Stopwatch t;
    file.append_whole("a record\n");
    file.sync();
    times.push_back(t.seconds());
  }
  return median_of(std::move(times));
}

double digest_seconds() {
  const std::string bytes(static_cast<size_t>(kLeast), '\x5a');
  const Stopwatch t;
  (void)digest_of(bytes);
  return t.seconds() / static_cast<double>(bytes.size());
}

double sha256_seconds() {
  const std::string bytes(static_cast<size_t>(kLeast), '\x5a');
  const Stopwatch t;
  Sha256 sha;
  sha.add(bytes.data(), bytes.size());
  (void)sha.hex();
  return t.seconds() / static_cast<double>(bytes.size());
}

double copy_seconds(Bench& bench, bool link) {
  Exec& ex = bench.ex;
  const Tensor from = link ? ex.alloc_pinned(DType::u8, {kInMemory}) : ex.alloc_zeros(DType::u8, {kInMemory});
  const Tensor to = ex.alloc_zeros(DType::u8, {kInMemory});
  return bench.seconds_of([&] { ex.copy(from, to); }) / static_cast<double>(kInMemory);
}

fs::path folder_of(const fs::path& out) {
  const fs::path parent = fs::absolute(out).parent_path();
  std::error_code ec;
  return fs::is_directory(parent, ec) && ::access(parent.c_str(), W_OK) == 0 ? parent : fs::temp_directory_path();
}

}  // namespace

double pack_seconds(Bench& bench, const PlannedLinear& p) {
  if (!p.packing) return 0;
  const QuantSpec& spec = p.recipe.spec;
  const int64_t out = p.linear.out, in = p.linear.in;
  QuantizedLinear q;
  q.spec = spec;
  q.codes = Tensor::host_zeros(DType::u8, {out, in});
  if (p.packing->two_of_four) std::fill_n(q.codes.as<uint8_t>(), out * in, static_cast<uint8_t>(spec.mid_code()));
  q.scales = Tensor::host_zeros(DType::f32, {(out + spec.out_group - 1) / spec.out_group, spec.groups(in)});
  std::fill_n(q.scales.as<float>(), q.scales.numel(), 1.f);
  if (spec.grid == Grid::integer && !spec.symmetric) q.zeros = Tensor::host_zeros(DType::u8, {out, spec.groups(in)});
  if (spec.two_level()) q.global_scale = 1;
  if (spec.activations == ActQuant::tensor) q.input_scale = 1;
  if (p.recipe.act_order == ActOrder::full) {
    q.group_of = Tensor::host(DType::i32, {in});
    for (int64_t i = 0; i < in; ++i) q.group_of->as<int32_t>()[i] = static_cast<int32_t>(i / spec.group_size(in));
  }
  const auto pack = [&] {
    std::future<std::string> hash = std::async(std::launch::async, [&q] { return content_hash(q); });
    (void)p.packing->pack(p.linear.name, q);
    (void)hash.get();
  };
  std::vector<double> times(3);  // threads that wake up late make one of them long
  for (double& t : times) t = bench.seconds_of(pack);
  return median_of(std::move(times)) / static_cast<double>(out * in);
}

double convert_seconds(Bench& bench) {
  constexpr int64_t kWeights = int64_t{2} << 20;
  const Tensor stored = Tensor::host_zeros(DType::bf16, {kWeights});
  return bench.seconds_of([&] { (void)upload_as(bench.ex, stored, DType::f32); }) / static_cast<double>(kWeights);
}

ByteRates measure_files(const Checkpoint& c, const QuantPlan& plan, const RateOptions& o) {
  const double share = o.budget / 8;
  const int64_t most = std::clamp(plan.out_bytes, kLeast, kMostOnDisk);
  const fs::path out = folder_of(o.out);
  ByteRates r;
  r.resident = resident_share(c.store.index().files);
  r.source = read_seconds(largest_file(c), share);
  r.write = write_seconds(out, most, true, share);
  r.scratch = write_seconds(o.scratch.empty() ? out : o.scratch, most / 4, false, share);
  r.sync = sync_seconds(out, share / 2);
  r.digest = digest_seconds();
  r.sha256 = sha256_seconds();
  return r;
}

void measure_copies(Bench& bench, ByteRates& r) {
  r.device = copy_seconds(bench, false);
  r.link = bench.ex.on_cuda() ? copy_seconds(bench, true) : 0;
}

}  // namespace fewbit
