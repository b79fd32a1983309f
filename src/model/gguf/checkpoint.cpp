#include "src/model/gguf/checkpoint.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <set>

#include "formats/gguf/block_codes.h"
#include "formats/gguf/file.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/model/archs.h"
#include "src/model/gguf/config.h"
#include "src/model/gguf/names.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using gguf::FileTensor;

bool is_float(const gguf::BlockType& t) {
  return t.plain == DType::f32 || t.plain == DType::f16 || t.plain == DType::bf16;
}

// Turns the tensors of the file into those of the model.
class Assembly {
 public:
  Assembly(const fs::path& path, MappedFile file, const gguf::File& parsed) : where_(path.string()) {
    index_.files.push_back(std::move(file));
    for (const FileTensor& t : parsed.tensors) found_[t.name] = &t;
    for (const auto& [key, value] : parsed.metadata.values())
      if (const auto* text = std::get_if<std::string>(&value)) index_.metadata[key] = *text;
  }

  void take(const GgufTensor& g) {
    expected_.insert(g.name);
    const auto it = found_.find(g.name);
    if (it == found_.end()) return complain(g.name, "expected " + g.shape().str() + ", found nothing");
    const FileTensor& t = *it->second;
    if (!(t.shape == g.shape()))
      return complain(g.name, "expected shape " + g.shape().str() + ", found " + t.shape.str());
    if (t.type->plain ? !is_float(*t.type) : g.computed())
      return complain(g.name, std::string("expected f32, f16") + (g.computed() ? " or bf16" : ", bf16 or blocks") +
                                  ", found " + std::string(t.type->name));
    if (g.of > 0) {
      pieces_[g.parts.front()].push_back({g, t.type, t.begin, t.bytes});
      return;
    }
    const int64_t bytes = t.bytes / static_cast<int64_t>(g.parts.size());
    for (size_t i = 0; i < g.parts.size(); ++i) add(g, t, g.parts[i], t.begin + static_cast<int64_t>(i) * bytes, bytes);
  }

  // Tensors of the model that lie in the file in several.
  void put_together() {
    for (const auto& [name, pieces] : pieces_) put_together(name, pieces);
  }

  // What no part of the model reads would be left out silently.
  void refuse_unknown() {
    expected_.insert({kRopeFreqs, kRopeLong, kRopeShort});  // read with the config
    for (const auto& [name, t] : found_)
      if (!expected_.count(name)) complain(name, "is no tensor of this architecture");
  }

  const std::vector<std::string>& complaints() const { return complaints_; }
  QuantizationSummary& quantization() { return quantization_; }
  std::map<std::string, StoredBlocks>& blocks() { return blocks_; }
  WeightStore store(const fs::path& path) { return WeightStore::of(path, std::move(index_), std::move(makers_)); }

 private:
  void complain(const std::string& tensor, const std::string& what) {
    complaints_.push_back(where_ + ": tensor '" + tensor + "': " + what);
  }
  struct Piece {
    GgufTensor g;
    const gguf::BlockType* type;
    int64_t begin, bytes;
  };

  // Numbers that lie side by side in a piece.
  static int64_t cols_of(const GgufTensor& g) { return g.turned > 0 ? std::ssize(g.rows) / g.turned : g.part[-1]; }
  ConstTensorView stored_rows(const Piece& p) const {
    const int64_t rows = std::ssize(p.g.rows) * p.g.part[-1] / cols_of(p.g);
    return {index_.files[0].bytes().data() + p.begin, DType::u8, {rows, p.bytes / rows}, {}};
  }
  // Blocks of codes that are one kind in all pieces stay blocks; else the pieces are numbers, in f32 where they differ.
  void put_together(const std::string& name, const std::vector<Piece>& pieces) {
    const GgufTensor& g = pieces.front().g;
    const gguf::BlockType& type = *pieces.front().type;
    bool one_type = true, same = true, turned = false;
    const Packing* packing = nullptr;
    int64_t bytes = 0;
    for (const Piece& p : pieces) {
      bytes += p.bytes;
      one_type &= p.type == &type;
      same &= one_type;
      turned |= p.g.turned > 0;
      packing = type.plain || !same ? nullptr : gguf_packing_of(type, stored_rows(p));
      same &= type.plain || packing;
    }
    const int64_t cols = g.part[-1];
    if (same && !type.plain && !turned) {
      TensorInfo info{module_of(name) + '.' + std::string(type.name),
                      DType::u8,
                      {g.of, gguf::row_bytes(type, cols)},
                      0,
                      pieces.front().begin,
                      bytes};
      info.stored = type.name;
      makers_[info.name] = [rows = views_of(pieces), pieces, of = g.of, shape = info.shape] {
        Tensor all = Tensor::host(DType::u8, shape);
        for (size_t i = 0; i < pieces.size(); ++i) put_rows(all.view(), rows[i], pieces[i].g.rows, of);
        return all;
      };
      quantization_.linears[module_of(name)] = {.packing = packing, .spec = *type.grid};
      index_.tensors[info.name] = info;
      return;
    }
    TensorInfo info{name, same && type.plain ? *type.plain : DType::f32, g.part, 0, pieces.front().begin, bytes};
    if (one_type && !type.plain) info.stored = type.name;
    makers_[name] = [rows = views_of(pieces), pieces, dtype = info.dtype, part = g.part] {
      Tensor all = Tensor::host(dtype, part);
      for (size_t i = 0; i < pieces.size(); ++i) {
        const GgufTensor& p = pieces[i].g;
        const int64_t each = cols_of(p);
        Tensor values = numbers_of(*pieces[i].type, rows[i], each, dtype);
        if (p.turned > 0) values = turned_blocks(values, p.turned, part[-1], each);
        put_rows(all.view(), values, p.rows, p.of);
      }
      return all;
    };
    index_.tensors[name] = info;
  }
  std::vector<ConstTensorView> views_of(const std::vector<Piece>& pieces) const {
    std::vector<ConstTensorView> out;
    out.reserve(pieces.size());
    for (const Piece& p : pieces) out.push_back(stored_rows(p));
    return out;
  }
  static Tensor numbers_of(const gguf::BlockType& type, ConstTensorView rows, int64_t cols, DType dtype) {
    if (!type.plain) return gguf::decode(type, rows, cols);
    const ConstTensorView plain{rows.data, *type.plain, {rows.bytes() / bytes_of(*type.plain)}, {}};
    return *type.plain == dtype ? clone_host(plain) : float_values(plain);
  }

  void add(const GgufTensor& g, const FileTensor& t, const std::string& name, int64_t begin, int64_t bytes) {
    TensorInfo info{name, DType::f32, g.part, 0, begin, bytes};
    const gguf::BlockType& type = *t.type;
    if (type.plain) {
      info.dtype = *type.plain;
      const int64_t run_bytes = g.run * bytes_of(info.dtype);
      if (g.computed() || !g.rows.empty() || !g.runs.empty())
        makers_[name] = [g, v = index_.view(info), run_bytes] {
          constexpr auto kFrom = GgufDirection::from_gguf;
          const Tensor rows = reordered(v, g.rows, kFrom);
          if (!g.runs.empty()) return reordered_runs(rows, g.runs, run_bytes, kFrom);
          return g.computed() ? computed_values(g, rows, kFrom) : clone_host(rows);
        };
      if (g.computed()) info.dtype = DType::f32;
      index_.tensors[name] = info;
      return;
    }
    const int64_t cols = g.part[-1];
    const ConstTensorView stored{
        index_.files[0].bytes().data() + begin, DType::u8, {g.part.numel() / cols, gguf::row_bytes(type, cols)}, {}};
    // Runs of columns that end inside of a block are put in order once they are numbers.
    const bool whole = g.runs.empty() || g.run % type.elements == 0;
    const auto rows = [stored, order = g.rows, runs = whole ? g.runs : GgufOrder(), run = g.run, &type] {
      Tensor t = reordered(stored, order, GgufDirection::from_gguf);
      return runs.empty() ? std::move(t)
                          : reordered_runs(t, runs, gguf::row_bytes(type, run), GgufDirection::from_gguf);
    };
    info.stored = type.name;
    StoredBlocks blocks{.type = &type, .rows = stored, .order = g.rows, .tensor = name};
    const Packing* packing = g.linear && whole ? gguf_packing_of(type, stored) : nullptr;
    if (!packing) {
      makers_[name] = [rows, &type, cols, runs = whole ? GgufOrder() : g.runs, run = g.run] {
        Tensor values = gguf::decode(type, rows(), cols);
        return runs.empty() ? std::move(values)
                            : reordered_runs(values, runs, run * bytes_of(DType::f32), GgufDirection::from_gguf);
      };
      index_.tensors[name] = info;
      if (g.runs.empty()) blocks_[module_of(name)] = std::move(blocks);
      return;
    }
    info.name = module_of(name) + '.' + std::string(type.name);
    blocks.tensor = info.name;
    if (g.runs.empty()) blocks_[module_of(name)] = std::move(blocks);
    info.dtype = DType::u8;
    info.shape = stored.shape;
    if (!g.rows.empty() || !g.runs.empty()) makers_[info.name] = rows;
    quantization_.linears[module_of(name)] = {.packing = packing, .spec = *type.grid};
    index_.tensors[info.name] = info;
  }

  std::string where_;
  CheckpointIndex index_;
  std::map<std::string, const FileTensor*> found_;
  std::map<std::string, std::vector<Piece>> pieces_;
  std::set<std::string> expected_;
  WeightStore::Makers makers_;
  QuantizationSummary quantization_;
  std::map<std::string, StoredBlocks> blocks_;
  std::vector<std::string> complaints_;
};

GgufRopeFactors rope_factors(const gguf::File& parsed, const MappedFile& file) {
  GgufRopeFactors found;
  for (const FileTensor& t : parsed.tensors) {
    if (t.name != kRopeFreqs && t.name != kRopeLong && t.name != kRopeShort) continue;
    if (t.type != &gguf::type_f32 || t.shape.rank() != 1)
      fail(ErrorKind::checkpoint, file.path().string() + ": tensor '" + t.name +
                                      "': expected f32 of one dimension, found " + std::string(t.type->name) + " " +
                                      t.shape.str());
    std::vector<float>& values = found[t.name];
    values.resize(static_cast<size_t>(t.shape.numel()));
    std::memcpy(values.data(), file.bytes().data() + t.begin, static_cast<size_t>(t.bytes));
  }
  return found;
}

}  // namespace

const Packing* gguf_packing_of(const gguf::BlockType& type, ConstTensorView blocks) {
  if (&type == &gguf::type_mxfp4) return &packing_gguf_mxfp4;
  if (!gguf::has_codes(type)) return nullptr;
  const Packing& p = packing("gguf_" + std::string(type.name));
  if (type.grid->symmetric) return &p;
  std::atomic<bool> on_grid{true};
  parallel_for(blocks.bytes() / type.bytes, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end && on_grid; ++i)
      if (gguf::zero_point(gguf::load_codes(type, blocks.as<uint8_t>() + i * type.bytes), type.grid->max_code()) < 0)
        on_grid = false;
  });
  return on_grid ? &p : nullptr;
}

Checkpoint open_gguf(const fs::path& path) {
  MappedFile file(path);
  const gguf::File parsed = gguf::parse(file.bytes(), path.string());
  ConfigView config = ConfigView::parse(config_from_gguf(parsed, rope_factors(parsed, file)), path.string());
  ModelSpec spec = build_spec(config);
  const int64_t bytes = std::ssize(file.bytes());
  Assembly assembly(path, std::move(file), parsed);
  check_gguf_rows(spec, bytes, path.string());
  for (const GgufTensor& g : gguf_tensors(spec)) assembly.take(g);
  assembly.put_together();
  assembly.refuse_unknown();
  if (!assembly.complaints().empty()) fail(ErrorKind::checkpoint, join(assembly.complaints(), "\n"));
  QuantizationSummary quantization = std::move(assembly.quantization());
  auto blocks = std::move(assembly.blocks());
  return {.dir = path,
          .config = std::move(config),
          .spec = std::move(spec),
          .store = assembly.store(path),
          .quantization = std::move(quantization),
          .format = "gguf",
          .blocks = std::move(blocks)};
}

}  // namespace fewbit
