// Types without blocks: one number each, as they lie in memory.
#include "formats/gguf/block_type.h"

namespace fewbit::gguf {

constinit const BlockType type_f32 = {.id = 0, .name = "f32", .bytes = 4, .plain = DType::f32};
constinit const BlockType type_f16 = {.id = 1, .name = "f16", .bytes = 2, .plain = DType::f16};
constinit const BlockType type_bf16 = {.id = 30, .name = "bf16", .bytes = 2, .plain = DType::bf16};
constinit const BlockType type_f64 = {.id = 28, .name = "f64", .bytes = 8, .plain = DType::f64};
constinit const BlockType type_i8 = {.id = 24, .name = "i8", .bytes = 1, .plain = DType::i8};
constinit const BlockType type_i16 = {.id = 25, .name = "i16", .bytes = 2, .plain = DType::i16};
constinit const BlockType type_i32 = {.id = 26, .name = "i32", .bytes = 4, .plain = DType::i32};
constinit const BlockType type_i64 = {.id = 27, .name = "i64", .bytes = 8, .plain = DType::i64};

}  // namespace fewbit::gguf
