#include "tools/cli/quantize/list.h"

#include <fmt/format.h>

#include "formats/checkpoint_format.h"
#include "formats/container.h"
#include "formats/packing.h"
#include "src/model/archs.h"
#include "src/model/gguf/mixes.h"
#include "src/quant/advice/advise.h"
#include "src/quant/method.h"
#include "src/quant/plan/engines.h"
#include "src/quant/transform.h"

namespace fewbit::cli {

void print_list() {
  fmt::print("methods\n");
  for (const Method* m : methods()) fmt::print("  {:<12} {}\n", m->name, m->summary);
  fmt::print("  {:<12} gptq with bits and groups, or --schemes, chosen by measured sensitivity (--target-bits)\n",
             "auto");
  fmt::print("transforms (in front of a method: awq+gptq; alone they end in rtn)\n");
  for (const Transform* t : transforms()) fmt::print("  {:<12} {}\n", t->name, t->summary);
  fmt::print("  {:<12} the whole model in another basis first, with Hadamard matrices (rotate+gptq; rotation=SEED)\n",
             "rotate");
  fmt::print("formats (--format)\n");
  for (const CheckpointFormat* f : checkpoint_formats()) fmt::print("  {:<12} {}\n", f->name, f->summary);
  fmt::print("mixes of GGUF's types (--format gguf:MIX), by llama.cpp's rules\n");
  for (const GgufMix& m : gguf_mixes()) fmt::print("  {:<12} {} there\n", m.name, m.there);
  fmt::print("packings\n");
  for (const Packing* p : packings()) fmt::print("  {:<12} {}\n", p->name, p->summary);
  fmt::print("containers\n");
  for (const Container* k : containers()) fmt::print("  {:<12} {}\n", k->name, k->summary);
  fmt::print("engines (--for)\n");
  for (const EngineRules& e : engines()) fmt::print("  {:<12} rules of {}\n", e.name, e.version);
  fmt::print("GPUs (advise --gpu)\n");
  for (const GpuModel& g : gpu_models()) fmt::print("  {:<12} {}\n", g.name, g.title);
  fmt::print("architectures\n");
  for (const Family* f : families())
    for (const FamilyClass& c : f->classes)
      if (!c.name.empty()) fmt::print("  {}\n", c.name);
}

}  // namespace fewbit::cli
