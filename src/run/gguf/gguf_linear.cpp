#include "src/run/gguf/gguf_linear.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "formats/gguf/block_codes.h"
#include "formats/gguf/mxfp4_blocks.h"
#include "formats/gguf/open_block.h"
#include "kernels/products/blocks/block_gemm.h"
#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;  // of the file that is read before its memory is given back

// Levels first, first + 1, ...
void count_from(float first, int bits, BlockForm& f) {
  for (size_t i = 0; i < size_t{1} << bits; ++i) f.levels[i] = first + static_cast<float>(i);
}

// What a type's blocks are; nothing where they have no codes.
std::optional<BlockForm> form_of_type(const gguf::BlockType& type) {
  BlockForm f;
  if (&type == &gguf::type_mxfp4) {
    f.scale = BlockScale::power;
    for (uint8_t code = 0; code < 16; ++code) f.levels[code] = f4_e2m1_to_f32(code);
    return f;
  }
  if (gguf::has_codes(type)) {
    f.bits = type.grid->bits;
    f.minima = !type.grid->symmetric;
    if (f.bits < 8) count_from(f.minima ? 0.f : -static_cast<float>(1 << (f.bits - 1)), f.bits, f);
    return f;
  }
  if (!type.open) return std::nullopt;
  const gguf::OpenForm& open = *type.open;
  f.bits = std::bit_width(open.levels.size() - 1);
  f.group = open.sub;
  f.columns = open.elements;
  f.minima = open.most_min > 0;
  f.scale = open.sub_blocks() == 1                        ? BlockScale::alone
            : open.most_scale < 16 && open.most_min == 15 ? BlockScale::nibbles
                                                          : BlockScale::bytes;
  std::copy(open.levels.begin(), open.levels.end(), f.levels.begin());
  return f;
}

const BlockForm* form_of(const gguf::BlockType& type) {
  static const auto forms = [] {
    std::map<const gguf::BlockType*, BlockForm> all;
    for (const gguf::BlockType* t : gguf::block_types())
      if (const auto form = form_of_type(*t)) all.emplace(t, *form);
    return all;
  }();
  const auto it = forms.find(&type);
  return it == forms.end() ? nullptr : &it->second;
}

void load_block(const gguf::BlockType& type, const uint8_t* block, BlockContent& to) {
  if (&type == &gguf::type_mxfp4) {
    to.d = block[0];
    std::copy_n(gguf::load_mx(block).codes, type.elements, to.codes.begin());
  } else if (type.open) {
    const gguf::OpenBlock b = type.open->load(block);
    to.d = f32_to_f16(b.d);
    to.m = f32_to_f16(-b.dmin);  // it is added
    for (size_t g = 0; g < 16; ++g) {
      to.scale[g] = static_cast<int16_t>(b.scale[g]);
      to.min[g] = static_cast<int16_t>(b.min[g]);
    }
    std::copy_n(b.codes, type.elements, to.codes.begin());
  } else {
    const gguf::BlockCodes b = gguf::load_codes(type, block);
    to.d = f32_to_f16(b.d);
    to.m = f32_to_f16(b.m);
    const uint8_t flip = type.grid->bits == 8 ? 0x80 : 0;  // code - 128 in two's complement
    for (size_t i = 0; i < gguf::kSimpleBlock; ++i) to.codes[i] = b.codes[i] ^ flip;
  }
}

}  // namespace

const BlockForm* block_form(const Checkpoint& c, const std::string& linear) {
  const auto it = c.blocks.find(linear);
  return it == c.blocks.end() ? nullptr : form_of(*it->second.type);
}

std::string with_acts(std::string_view type, ActsType acts) {
  return std::string(type) + (acts == ActsType::bf16 ? "" : " x " + std::string(name_of(acts)));
}

bool runs_as_blocks(const Exec& ex, const Checkpoint& c, const std::string& linear, const LoadOptions& o) {
  if (ex.on_cuda() || o.weights != Weights::packed || o.dtype != DType::bf16 || o.ranks || !block_form(c, linear))
    return false;
  return o.acts == ActsType::int8 || cpu::block_loops() != cpu::BlockLoops::plain;
}

Linear gguf_linear(Exec& ex, const Checkpoint& c, const NamedLinear& l, Tensor bias, ActsType acts) {
  const StoredBlocks& stored = c.blocks.at(l.name);
  const gguf::BlockType& type = *stored.type;
  const BlockForm& form = *form_of(type);
  const int64_t row_bytes = stored.rows.cols(), strip_bytes = form.strip_bytes(l.in), blocks = l.in / form.columns;
  FEWBIT_ASSERT(stored.rows.rows() == l.out && l.in % form.columns == 0 && row_bytes == blocks * type.bytes);
  std::vector<int64_t> file_row(stored.order.size());  // of a row of the matrix
  for (size_t i = 0; i < file_row.size(); ++i) file_row[static_cast<size_t>(stored.order[i])] = static_cast<int64_t>(i);
  GgufLinear g{.bias = std::move(bias),
               .form = &form,
               .type = with_acts(type.name, acts),
               .out = l.out,
               .in = l.in,
               .acts = acts};
  const int64_t strips = (l.out + kStripOuts - 1) / kStripOuts;
  g.strips = ex.alloc(DType::u8, {strips, strip_bytes});
  const int64_t piece = std::max<int64_t>(1, kPieceBytes / (kStripOuts * row_bytes));  // strips
  for (int64_t first = 0; first < strips; first += piece) {
    const int64_t last = std::min(strips, first + piece);
    parallel_for(last - first, 1, [&](int64_t at, int64_t) {
      const int64_t s = first + at;
      uint8_t* strip = g.strips.as<uint8_t>() + s * strip_bytes;
      std::memset(strip, 0, static_cast<size_t>(strip_bytes));
      BlockContent content;
      for (int64_t o = s * kStripOuts; o < std::min(l.out, (s + 1) * kStripOuts); ++o) {
        const int64_t row = file_row.empty() ? o : file_row[static_cast<size_t>(o)];
        for (int64_t t = 0; t < blocks; ++t) {
          load_block(type, stored.rows.as<uint8_t>() + row * row_bytes + t * type.bytes, content);
          put_block(form, l.in, content, t, o % kStripOuts, strip);
        }
      }
    });
    // Rows in another order may be read again; those few are given back at the end.
    if (file_row.empty())
      c.store.forget(stored.tensor, first * kStripOuts * row_bytes, (last - first) * kStripOuts * row_bytes);
  }
  if (!file_row.empty()) c.store.forget(stored.tensor, 0, stored.rows.bytes());
  return g;
}

}  // namespace fewbit
