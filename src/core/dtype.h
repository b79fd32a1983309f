#pragma once
// Element types: things with an address. Packed nibbles are u8 or i32 tensors plus a packing that knows them.
#include <cstdint>
#include <optional>
#include <string_view>

namespace fewbit {

enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  i64,
  u64,
  i32,
  u32,
  i16,
  u16,
  i8,
  u8,
  boolean
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;         // ours, in messages
  std::string_view safetensors;  // in the header of a safetensors file
  int bytes;
};

// The one table. Order equals the enum's.
inline constexpr DTypeInfo kDTypes[] = {
    {DType::f64, "f64", "F64", 8},
    {DType::f32, "f32", "F32", 4},
    {DType::f16, "f16", "F16", 2},
    {DType::bf16, "bf16", "BF16", 2},
    {DType::f8_e4m3, "f8_e4m3", "F8_E4M3", 1},
    {DType::f8_e5m2, "f8_e5m2", "F8_E5M2", 1},
    {DType::f8_e8m0, "f8_e8m0", "F8_E8M0", 1},
    {DType::i64, "i64", "I64", 8},
    {DType::u64, "u64", "U64", 8},
    {DType::i32, "i32", "I32", 4},
    {DType::u32, "u32", "U32", 4},
    {DType::i16, "i16", "I16", 2},
    {DType::u16, "u16", "U16", 2},
    {DType::i8, "i8", "I8", 1},
    {DType::u8, "u8", "U8", 1},
    {DType::boolean, "bool", "BOOL", 1},
};

constexpr const DTypeInfo& info(DType d) { return kDTypes[static_cast<int>(d)]; }
constexpr int64_t bytes_of(DType d) { return info(d).bytes; }
constexpr std::string_view name_of(DType d) { return info(d).name; }

constexpr std::optional<DType> dtype_from_safetensors(std::string_view s) {
  for (const DTypeInfo& i : kDTypes)
    if (i.safetensors == s) return i.dtype;
  return std::nullopt;
}

}  // namespace fewbit
