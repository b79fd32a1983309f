#include "src/quant/loop/read_ahead.h"

#include <fcntl.h>

#include <map>
#include <memory>
#include <vector>

#include "src/core/file_io.h"

namespace fewbit {

void read_ahead(const Checkpoint& c, int64_t layer) {
  const std::string prefix = c.spec.prefix(layer);
  const auto& tensors = c.store.index().tensors;
  std::map<int, std::vector<const TensorInfo*>> by_file;
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it)
    by_file[it->second.file].push_back(&it->second);
  for (const auto& [file, infos] : by_file) {
    const File open = File::with_flags(c.store.index().files[static_cast<size_t>(file)].path(), O_RDONLY);
    if (!open.open()) continue;
    for (const TensorInfo* t : infos) ::posix_fadvise(open.fd(), t->begin, t->bytes, POSIX_FADV_WILLNEED);
  }
}

namespace {

// The weight as it lies in its file, where that is mapped for good; empty where it is packed or has another form. A
// store may make it of that (an adapter, a rotation), in memory that is not this.
ConstTensorView in_file(const Checkpoint& c, const NamedLinear& l) {
  const TensorInfo* t = c.packed(l.name) ? nullptr : c.store.find(l.name + ".weight");
  if (!t || !t->stored.empty() || t->bytes != l.out * l.in * bytes_of(t->dtype)) return {};
  const MappedFile& file = c.store.index().files[static_cast<size_t>(t->file)];
  return file.whole() && t->begin + t->bytes <= file.size() ? c.store.index().view(*t) : ConstTensorView{};
}

}  // namespace

void foresee(UploadAhead& ahead, const Checkpoint& c, const NamedLinear& l) {
  if (const ConstTensorView w = in_file(c, l); w.data) ahead.foresee(w);
}

void release_beside(Background& background, const Checkpoint& c, const NamedLinear& l) {
  const std::string name = l.name + ".weight";
  const ConstTensorView there = in_file(c, l);
  // What a store made of it would be gone while it is wanted again.
  if (!there.data || c.store.get(name).data != there.data) return c.store.release(name);
  background.give(
      "load", 0, [&c, name] { c.store.forget(name); }, Background::When::any_time);
}

void foresee_whole(UploadAhead& ahead, const Checkpoint& c, const std::vector<NamedLinear>& linears, DType dtype) {
  std::vector<ConstTensorView> hosts;
  const auto names = std::make_shared<std::vector<std::string>>();  // one list for all of them, which are many
  for (const NamedLinear& l : linears)
    if (const ConstTensorView w = in_file(c, l); w.data && w.dtype == dtype) {
      hosts.push_back(w);
      names->push_back(l.name + ".weight");
    }
  // The pages of a whole block would be held from one block to the next.
  ahead.foresee_whole(hosts, [&c, names](size_t i) { c.store.forget((*names)[i]); });
}

Tensor taken_ahead(UploadAhead& ahead, const Checkpoint& c, const NamedLinear& l, DType dtype) {
  if (!in_file(c, l).data) return {};
  return ahead.take(c.store.expect(l.name + ".weight", {DType::f32, DType::f16, DType::bf16}, {l.out, l.in}), dtype);
}

}  // namespace fewbit
