// WeightStore: names to views into mapped files.
#include "src/model/weight_store.h"

#include <algorithm>

#include "src/core/error.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

bool is_pickle(const fs::path& p) {
  const std::string e = p.extension().string();
  return e == ".bin" || e == ".pt" || e == ".pth" || e == ".ckpt";
}

// A pickled weight file at or directly below the path; empty when there is none.
fs::path find_pickle(const fs::path& p) {
  std::error_code ec;
  if (!fs::is_directory(p, ec)) return is_pickle(p) && fs::exists(p, ec) ? p : fs::path();
  std::vector<fs::path> found;
  for (fs::directory_iterator it(p, ec), end; !ec && it != end; it.increment(ec))
    if (is_pickle(it->path())) found.push_back(it->path());
  return found.empty() ? fs::path() : *std::min_element(found.begin(), found.end());
}

}  // namespace

WeightStore WeightStore::open(const fs::path& dir_or_file) {
  const auto recognised = [&](const Container* c) { return c->probe(dir_or_file); };
  if (std::none_of(containers().begin(), containers().end(), recognised)) {
    if (const fs::path pickle = find_pickle(dir_or_file); !pickle.empty()) {
      fail(ErrorKind::unsupported, pickle.string() +
                                       ": pickled weights are not read (they can run code); convert to safetensors "
                                       "with the model's own tools first");
    }
  }
  WeightStore store;
  store.path_ = dir_or_file;
  store.index_ = container_for(dir_or_file).open(dir_or_file);
  return store;
}

WeightStore WeightStore::of(fs::path path, CheckpointIndex index, Makers makers) {
  WeightStore store;
  store.path_ = std::move(path);
  store.index_ = std::move(index);
  store.makers_ = std::move(makers);
  return store;
}

WeightStore WeightStore::reindexed(const std::function<void(const fs::path&, CheckpointIndex&, Makers&)>& edit) && {
  edit(path_, index_, makers_);
  return std::move(*this);
}

const TensorInfo* WeightStore::find(const std::string& name) const {
  const auto it = index_.tensors.find(name);
  return it == index_.tensors.end() ? nullptr : &it->second;
}

ConstTensorView WeightStore::get(const std::string& name) const {
  const TensorInfo* t = find(name);
  if (!t) fail(ErrorKind::checkpoint, path_.string() + ": tensor '" + name + "' is missing");
  const auto maker = makers_.find(name);
  if (maker == makers_.end()) return index_.view(*t);
  const std::lock_guard lock(*making_);
  const auto [at, fresh] = made_.try_emplace(name);
  if (fresh) at->second = maker->second();
  return at->second;
}

void WeightStore::release(const std::string& name) const {
  {
    const std::lock_guard lock(*making_);
    made_.erase(name);
  }
  forget(name);
}

void WeightStore::forget(const std::string& name) const {
  if (const TensorInfo* t = find(name); t && !makers_.count(name))
    index_.files[static_cast<size_t>(t->file)].forget(t->begin, t->bytes);
}

void WeightStore::forget(const std::string& name, int64_t from, int64_t count) const {
  const TensorInfo* t = find(name);
  if (!t || from >= t->bytes) return;
  const MappedFile& file = index_.files[static_cast<size_t>(t->file)];
  if (file.whole()) file.forget(t->begin + from, std::min(count, t->bytes - from));
}

ConstTensorView WeightStore::expect(const std::string& name, std::initializer_list<DType> dtypes,
                                    const Shape& shape) const {
  const ConstTensorView v = get(name);
  const bool dtype_ok = std::find(dtypes.begin(), dtypes.end(), v.dtype) != dtypes.end();
  if (dtype_ok && v.shape == shape) return v;
  std::string expected;
  for (DType d : dtypes) expected += (expected.empty() ? "" : " or ") + std::string(name_of(d));
  const std::string file = index_.files[static_cast<size_t>(find(name)->file)].path().string();
  fail(ErrorKind::checkpoint, file + ": tensor '" + name + "': expected " + expected + " " + shape.str() + ", found " +
                                  std::string(name_of(v.dtype)) + " " + v.shape.str());
}

int64_t WeightStore::total_bytes() const {
  int64_t n = 0;
  for (const auto& [name, t] : index_.tensors) n += t.bytes;
  return n;
}

}  // namespace fewbit
