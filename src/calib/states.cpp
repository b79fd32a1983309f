#include "src/calib/states.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/exec/side_stream.h"

namespace fewbit {
namespace {

[[noreturn]] void fail_file(const std::filesystem::path& folder, const char* what) {
  fail(ErrorKind::io, folder.string() + ": " + what + " the calibration's states: " + std::strerror(errno) +
                          "; give --scratch a folder with more room, or a larger --max-host-memory");
}

std::filesystem::path folder_of(const std::filesystem::path& scratch) {
  return scratch.empty() ? std::filesystem::temp_directory_path() : scratch;
}

}  // namespace

int64_t& StateStore::used(Tier tier) {
  return tier == Tier::device ? use_.device : tier == Tier::host ? use_.host : use_.file;
}

StateStore::Tier StateStore::take(int64_t bytes) {
  const Tier tier = ex_.on_cuda() && bytes <= room_.device - use_.device ? Tier::device
                    : bytes <= room_.host - use_.host                    ? Tier::host
                                                                         : Tier::file;
  used(tier) += bytes;
  peak_ = {std::max(peak_.device, use_.device), std::max(peak_.host, use_.host), std::max(peak_.file, use_.file)};
  return tier;
}

void StateStore::give_back(Tier tier, int64_t bytes, Tensor memory) {
  used(tier) -= bytes;
  if (tier != Tier::host || !ex_.on_cuda() || memory.empty()) return;
  kept_bytes_ += memory.bytes();
  kept_.push_back(std::move(memory));
}

Tensor StateStore::pinned(DType dtype, const Shape& shape) {
  const auto fits = [&](const Tensor& t) { return t.dtype() == dtype && t.shape() == shape; };
  if (const auto found = std::find_if(kept_.begin(), kept_.end(), fits); found != kept_.end()) {
    Tensor t = std::move(*found);
    kept_.erase(found);
    kept_bytes_ -= t.bytes();
    return t;
  }
  while (!kept_.empty() && kept_bytes_ > room_.host - use_.host) {
    kept_bytes_ -= kept_.front().bytes();
    kept_.erase(kept_.begin());
  }
  return ex_.alloc_pinned(dtype, shape);
}

States::States(StateStore& store, const Chunks& chunks, DType dtype, int64_t features)
    : store_(&store),
      chunks_(chunks),
      dtype_(dtype),
      features_(features),
      pieces_(static_cast<size_t>(chunks.count())) {}

States::States(States&& o) noexcept
    : store_(o.store_),
      chunks_(o.chunks_),
      dtype_(o.dtype_),
      features_(o.features_),
      pieces_(std::exchange(o.pieces_, {})),
      file_(std::exchange(o.file_, -1)) {}

States& States::operator=(States&& o) noexcept {
  if (this == &o) return *this;
  release();
  store_ = o.store_;
  chunks_ = o.chunks_;
  dtype_ = o.dtype_;
  features_ = o.features_;
  pieces_ = std::exchange(o.pieces_, {});
  file_ = std::exchange(o.file_, -1);
  return *this;
}

States::~States() { release(); }

void States::drop(int64_t chunk) {
  Piece& p = pieces_[static_cast<size_t>(chunk)];
  if (p.tier == StateStore::Tier::none) return;
  const int64_t bytes = bytes_of_rows(chunks_.rows(chunk));
  if (p.tier == StateStore::Tier::file)  // a file system that cannot make holes keeps the room until the file goes
    ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, bytes_of_rows(chunks_.begin(chunk)), bytes);
  store_->give_back(p.tier, bytes, std::move(p.memory));
  p = {};
}

void States::release() {
  if (file_ >= 0) ::close(file_);  // with all that is in it
  file_ = -1;
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (Piece& p = pieces_[i]; p.tier != StateStore::Tier::none)
      store_->give_back(p.tier, bytes_of_rows(chunks_.rows(static_cast<int64_t>(i))), std::move(p.memory));
  pieces_.clear();
}

// Where the chunk lies, or will.
States::Piece& States::room_for(int64_t chunk, ConstTensorView rows) {
  FEWBIT_ASSERT(rows.dtype == dtype_ && rows.rows() == chunks_.rows(chunk) && rows.cols() == features_);
  Piece& p = pieces_[static_cast<size_t>(chunk)];
  if (p.tier == StateStore::Tier::none) p.tier = store_->take(rows.bytes());
  return p;
}

TensorView States::departing(int64_t chunk, ConstTensorView rows) {
  Exec& ex = store_->exec();
  if (!ex.on_cuda()) return {};  // the memory of the host is the device's: counted with the ops' own
  Piece& p = room_for(chunk, rows);
  if (p.tier != StateStore::Tier::host) return {};
  if (p.memory.empty()) p.memory = store_->pinned(dtype_, rows.shape);
  return p.memory;
}

void States::put(int64_t chunk, ConstTensorView rows) {
  Exec& ex = store_->exec();
  if (const TensorView host = departing(chunk, rows); host.data) return copy_behind(ex, rows, host);
  Piece& p = room_for(chunk, rows);
  if (p.tier == StateStore::Tier::file) return write_file(chunk, rows);
  if (p.memory.empty()) p.memory = ex.alloc(dtype_, rows.shape);
  if (p.memory.view().data != rows.data) ex.copy(rows, p.memory);
}

void States::put(int64_t chunk, Tensor&& rows) {
  Piece& p = room_for(chunk, rows);
  if (p.tier == StateStore::Tier::file || (p.tier == StateStore::Tier::host && store_->exec().on_cuda()))
    return put(chunk, ConstTensorView(rows));
  p.memory = std::move(rows);
}

void States::get(int64_t begin, int64_t end, TensorView into) const {
  const int64_t step = chunks_.per_chunk() * chunks_.length;
  for (int64_t at = begin; at < end;) {
    const int64_t chunk = at / step, first = chunks_.begin(chunk);
    const int64_t stop = std::min(end, first + chunks_.rows(chunk));
    const Piece& p = pieces_[static_cast<size_t>(chunk)];
    FEWBIT_ASSERT(p.tier != StateStore::Tier::none);
    const TensorView part = into.row_range(at - begin, stop - begin);
    if (p.tier == StateStore::Tier::file)
      read_file(at, stop, part);
    else
      store_->exec().copy(p.memory.view().row_range(at - first, stop - first), part);
    at = stop;
  }
}

ConstTensorView States::resident(int64_t chunk) const {
  const Piece& p = pieces_[static_cast<size_t>(chunk)];
  const bool here =
      p.tier == StateStore::Tier::device || (p.tier == StateStore::Tier::host && !store_->exec().on_cuda());
  return here ? ConstTensorView(p.memory) : ConstTensorView{};
}

ConstTensorView States::pinned(int64_t chunk) const {
  const Piece& p = pieces_[static_cast<size_t>(chunk)];
  const bool there = p.tier == StateStore::Tier::host && store_->exec().on_cuda();
  return there ? ConstTensorView(p.memory) : ConstTensorView{};
}

TensorView States::in_place(int64_t chunk) {
  return resident(chunk).data ? pieces_[static_cast<size_t>(chunk)].memory.view() : TensorView{};
}

void States::expect(int64_t chunk) const {
  if (chunk >= chunks_.count() || pieces_[static_cast<size_t>(chunk)].tier != StateStore::Tier::file) return;
  ::posix_fadvise(file_, bytes_of_rows(chunks_.begin(chunk)), bytes_of_rows(chunks_.rows(chunk)), POSIX_FADV_WILLNEED);
}

// The file has no name: it is gone with the process, however that ends.
void States::open_file() {
  const std::filesystem::path folder = folder_of(store_->room_.scratch);
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  file_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file_ >= 0) return;
  std::string name = (folder / "states-XXXXXX").string();  // a file system without O_TMPFILE
  file_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (file_ < 0) fail_file(folder, "cannot make a file for");
  ::unlink(name.c_str());
}

void States::write_file(int64_t chunk, ConstTensorView rows) {
  if (file_ < 0) open_file();
  Tensor staged;
  if (rows.device.kind == Device::cuda) staged = store_->exec().to_host(rows);
  const char* from = static_cast<const char*>(staged ? staged.view().data : rows.data);
  int64_t at = bytes_of_rows(chunks_.begin(chunk)), left = rows.bytes();
  while (left > 0) {
    const ssize_t n = ::pwrite(file_, from, static_cast<size_t>(left), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_file(folder_of(store_->room_.scratch), "cannot write");
    from += n, at += n, left -= n;
  }
}

void States::read_file(int64_t begin, int64_t end, TensorView into) const {
  Tensor staged;
  if (into.device.kind == Device::cuda) staged = Tensor::host(dtype_, into.shape);
  char* to = static_cast<char*>(staged ? staged.view().data : into.data);
  int64_t at = bytes_of_rows(begin), left = bytes_of_rows(end - begin);
  while (left > 0) {
    const ssize_t n = ::pread(file_, to, static_cast<size_t>(left), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_file(folder_of(store_->room_.scratch), "cannot read");
    to += n, at += n, left -= n;
  }
  if (staged) store_->exec().copy(staged, into);
}

}  // namespace fewbit
