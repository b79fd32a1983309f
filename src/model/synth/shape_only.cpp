// A preset as a checkpoint without bytes.
#include "src/model/archs.h"
#include "src/model/checkpoint.h"
#include "src/model/synth/synth.h"

namespace fewbit {

Checkpoint shape_only(const SynthOptions& options) {
  ConfigView config = ConfigView::parse(synth_preset_config(options), "preset " + options.preset);
  ModelSpec spec = build_spec(config);
  CheckpointIndex index;
  const auto add = [&](const std::string& name, DType dtype, const Shape& shape) {
    index.tensors[name] = {.name = name, .dtype = dtype, .shape = shape, .bytes = shape.numel() * bytes_of(dtype)};
  };
  for (const NamedDense& d : dense_tensors_of(spec)) add(d.name, d.below > 0 ? DType::i64 : DType::bf16, d.shape);
  for (const NamedLinear& l : linears_of(spec)) add(l.name + ".weight", DType::bf16, {l.out, l.in});
  return {.dir = options.preset,
          .config = std::move(config),
          .spec = std::move(spec),
          .store = WeightStore::of(options.preset, std::move(index), {}),
          .quantization = {},
          .format = "dense"};
}

}  // namespace fewbit
