// GPTQ on 4-bit floats and in GGUF's blocks with scales of their own: losses below those of rounding, and what stands
// in the result is what the losses are of.
#include "formats/gguf/open_block.h"
#include "kernels/statistics/gram_loss.h"
#include "src/quant/rounding.h"
#include "tests/quant/workbench.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"

namespace fewbit {
namespace {

using namespace test;

FEWBIT_DEVICE_TEST(GptqLevels, FloatsOfFourBitsLoseLessThanRounding) {
  for (const QuantSpec& spec : {kNvfp4, kMxfp4}) {
    Workbench b(ex, 48, 288, 31);  // a last strip that is not full
    LinearJob job = b.job();
    job.spec = spec;
    const MethodResult rtn = method("rtn").quantize(b.ex, job), fed = method("gptq").quantize(b.ex, job);
    EXPECT_EQ(check(fed.linear), "") << spec.str();
    EXPECT_EQ(fed.rung, "fp32");
    EXPECT_LT(fed.loss, 0.7 * rtn.loss) << spec.str();
    EXPECT_LT(std::fabs(fed.loss_rtn / rtn.loss_rtn - 1), tol::kLossIdentity);
    EXPECT_EQ(fed.linear.global_scale, rtn.linear.global_scale);
    const double again = loss_per_token(b.ex, b.weight, values_of(b.ex, fed.linear, DType::f32), b.stats);
    EXPECT_LT(std::fabs(again / fed.loss - 1), tol::kLossIdentity);
    job.effort = Effort::quick;
    const double quick = method("gptq").quantize(b.ex, job).loss;
    EXPECT_LT(fed.loss, quick) << "descent";
    job.shared_absmax = 8;  // a sibling with larger weights decides the global scale
    if (!spec.two_level()) continue;
    EXPECT_GT(*method("gptq").quantize(b.ex, job).linear.global_scale, *fed.linear.global_scale);
  }
}

FEWBIT_DEVICE_TEST(GptqLevels, BlocksLoseLessThanTheirEncoders) {
  for (const gguf::BlockType* type : gguf::block_types()) {
    if (!type->open) continue;
    Workbench b(ex, 40, 512, 32);
    LinearJob job = b.job();
    job.spec = *type->grid;
    const EncodedLinear fed = method("gptq").encode(b.ex, job, *type);
    const auto loss = [&](const Tensor& blocks) {
      return loss_per_token(b.ex, b.weight, b.ex.to_device(gguf::decode(*type, blocks, 512)), b.stats);
    };
    const Tensor importance = diagonal_of(b.ex.to_host(b.stats.gram));
    const double rounded = loss(gguf::encode(*type, b.host_weight, importance, gguf::Encoder::searched));
    EXPECT_LT(fed.result.loss, 0.75 * rounded) << type->name;
    EXPECT_LT(std::fabs(loss(fed.blocks) / fed.result.loss - 1), tol::kLossIdentity) << type->name;
    job.effort = Effort::reference;
    EXPECT_LT(fed.result.loss, method("gptq").encode(b.ex, job, *type).result.loss) << type->name;
  }
}

FEWBIT_DEVICE_TEST(GptqLevels, AMatrixWithoutTokensIsRefusedOrRounded) {
  Workbench b(ex, 8, 256, 33);
  b.stats.tokens = 0;
  LinearJob job = b.job();
  job.spec = kNvfp4;
  EXPECT_THROW(method("gptq").quantize(b.ex, job), Error);
  job.allow_rtn = true;
  EXPECT_EQ(method("gptq").quantize(b.ex, job).rung, "rtn");
  EXPECT_EQ(method("gptq").encode(b.ex, job, gguf::type_q4_k).result.rung, "rtn");
}

}  // namespace
}  // namespace fewbit
