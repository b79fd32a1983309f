// Low-bit models as a user types it: what passes is said, what is kept and dropped is left alone.
#include <algorithm>
#include <filesystem>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class LowBitCommands : public CommandTest {};

TEST_F(LowBitCommands, PassKeepAndDrop) {
  done("quantize 'fp8 block128 format=fp8' " + kDemo + " fp8 --device cpu");
  const ProcessResult again = run("quantize 'fp8 block128 format=fp8' fp8 again --device cpu");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("lossless: 28 linears"), std::string::npos) << again.out;
  EXPECT_EQ(bytes_of_file(dir / "again/model.safetensors"), bytes_of_file(dir / "fp8/model.safetensors"));
  const Json plan = json("quantize plan 'fp8 block128 format=fp8' fp8");
  EXPECT_EQ(plan["linears"][0]["recipe"], "lossless fp8 block128 acts=token");

  const Json mixed = json(
      "quantize 'rtn int4 g128 format=compressed-tensors' fp8 mixed --device cpu "
      "--keep-source-grid 'self_attn.*'");
  EXPECT_EQ(std::count_if(mixed["linears"].begin(), mixed["linears"].end(),
                          [](const Json& l) { return l["lossless"].get<bool>(); }),
            16);
  done("evaluate verify mixed --device cpu");
  const std::string card = bytes_of_file(dir / "mixed/README.md");
  EXPECT_NE(card.find("--keep-source-grid 'self_attn.*'"), std::string::npos) << card;

  const ProcessResult needed = run("convert to bf16 fp8 dense --drop '*.up_proj'");
  EXPECT_EQ(needed.exit_code, 2) << needed.err;
  EXPECT_NE(needed.err.find("the language model needs"), std::string::npos) << needed.err;
  EXPECT_FALSE(fs::exists(dir / "dense"));
}

TEST_F(LowBitCommands, GgufHasTheSameValues) {
  done("quantize 'rtn mxfp4' " + kDemo + " mx --device cpu");
  done("quantize 'rtn format=gguf:mxfp4' mx out --device cpu");
  done("evaluate verify out --device cpu");
  const ProcessResult same = run("convert diff mx out");
  EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
}

}  // namespace
}  // namespace fewbit::test
