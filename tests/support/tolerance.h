#pragma once
// The one home of test tolerances. All are relative: ||a - b|| / ||b||.
namespace fewbit::tol {

inline constexpr double kExact = 0;
inline constexpr double kF32Op = 2e-6;                    // an f32 op against a double reference
inline constexpr double kF32Product = 2e-5;               // a long f32 product
inline constexpr double kTf32Product = 1e-3;              // of factors rounded to TF32, 2^-11 each
inline constexpr double kTermsProduct = 3 * kF32Product;  // of factors in two bf16 terms each, which leave out 2^-17
// The residual of a system whose solution was rounded to f32: that rounding times the system's largest eigenvalues.
inline constexpr double kShiftResidual = 5e-5;
inline constexpr double kShiftResidualOfTerms = 128 * kShiftResidual;  // by products that leave out 2^-17, not 2^-24
inline constexpr double kF8Product = 6e-4;   // FP8 tensor cores keep a little less than f32 of a sum
inline constexpr double kBf16Op = 6e-3;      // one bf16 rounding of inputs and output
inline constexpr double kLogitsF32 = 1e-4;   // whole model, float32, against the reference implementation
inline constexpr double kLogitsBf16 = 2e-2;  // whole model, bf16
// The same of models that enlarge small differences (sharp attention, nearly orthogonal queries and keys of a delta
// net): times the error of the float32 pass with everything that an op writes rounded to bf16.
inline constexpr double kOverRounding = 1.25;
// The same on a GPU and on a CPU with a matrix unit, where attention rounds the weights of values too: times the limit
// (found: 1.03, glm-moe-dsa).
inline constexpr double kRoundedWeights = 1.05;
// Logits of the two likeliest tokens that rows beside a row may turn round on a GPU, bf16, of the demo model.
inline constexpr float kNearTie = 0.25f;
inline constexpr float kNearTieInt4Cache = 0.75f;  // codes of 4 bits that fall on the other side of a tie (found: 0.49)
inline constexpr double kNll = 2e-5;               // mean loss of a whole model, float32, relative
// The same through a quantized cache, float32: a code may fall on the other side of a tie (found: 2.5e-3, one code of
// an unturned FP8 cache on an H100, where a prompt and its last token are multiplied in different orders).
inline constexpr double kLogitsQuantizedCache = 4e-3;
// And in bf16, whose rounding moves many codes to a neighbour: with FP8, bf16 is up to 0.047 away from
// float32 on the CPU.
inline constexpr double kLogitsQuantizedCacheBf16 = 6e-2;
// And through 4 bits, whose steps are eighteen times those of int8: a scale that falls on the other side of a tie of
// bf16 moves a whole group by up to 2^-8 of its values, a code by a fifteenth of their range.
inline constexpr double kLogitsInt4Cache = 4e-2;
inline constexpr double kLogitsInt4CacheBf16 = 0.2;
inline constexpr double kLogitsInt4Values = 0.3;  // what keys and values of 4 bits may change logits by
// Whole model, bf16, inputs of the linears rounded to E4M3: a value next to a tie moves by a step, and with it those of
// all layers above. On the CPU, sums 1e-6 apart have moved the outputs of three layers by 0.065, on a GPU the logits by
// 0.114.
inline constexpr double kLogitsBytesBf16 = 0.2;
inline constexpr double kLogitsFp8Cache = 0.1;  // what FP8 keys and values may change logits by
// what rounding the head may change logits by: E4M3 in steps of 1/16 to 1/8
inline constexpr double kLogitsFp8Head = 0.05;
inline constexpr double kLogitsInt4Head = 0.15;
// Share of the tokens that bf16 may send to another expert than float32 does in one layer or more, in the goldens of
// random routers (up to 4 layers, 3 of 6 experts). The most that was found: 0.22, of MXFP4 weights.
inline constexpr double kReroutedTokens = 0.25;
// Share of a layer's chosen keys that bf16 may take in place of others, 12 of up to 48 in random indexers.
inline constexpr double kOtherKeys = 0.15;
// Latent attention in bf16, scores of products that were rounded once before (over the tokens at hand) or not at all.
inline constexpr double kLatentBf16 = 1e-2;
inline constexpr double kInt4Loss = 0.1;          // mean NLL that 4-bit weights may move, tiny random models
inline constexpr double kInt4LossEnlarged = 0.2;  // the same of models that enlarge small differences
// The same where keys are chosen too: plain rounding moves choices of keys and experts, 0.20 with 12 of 48 keys and
// 0.10 with all of them; GPTQ stays below 0.1.
inline constexpr double kInt4LossChosen = 0.25;
inline constexpr double kReroutedPacked = 0.06;  // the same between packed kernels and dequantized weights
// Packed kernels against dequantized weights, bf16. Of 4,000 tokens: which values a rounding to bf16 moves differs from
// one BLAS kernel to another, and moves perplexity by 5e-4 (standard deviation, over recipes and kernels).
inline constexpr double kPackedPerplexity = 2e-3;
inline constexpr double kPackedPerplexityShort = 4e-3;  // of 1,000 tokens, over which it moves twice as far
// The same where a rounding to bf16 weighs more (1.5e-3): two bits on four samples of calibration (a model near its
// end), and steps of a whole tensor's range in the inputs.
inline constexpr double kPackedPerplexityCoarse = 6e-3;
// Perplexity of a model that ranks share against the same on one: f32 sums of parts, and roundings to bf16 that those
// move, of a hundred tokens. One golden that chooses keys and experts (GLM-5), where such a rounding changes a choice,
// differs by 6e-3 with the sums of AVX512-BF16 (5e-3 and less with those of AMX and OpenBLAS).
inline constexpr double kSharedModelF32 = 2e-5;
inline constexpr double kSharedModelBf16 = 8e-3;
inline constexpr double kProtocol = 5e-4;  // perplexity against another implementation of the protocol, float32

inline constexpr double kPublishedError = 1e-2;  // output errors that a published implementation reports
inline constexpr double kFactor = 2e-3;          // an f32 factor times its inverse, at a condition of a few thousand
inline constexpr double kFlippedRows = 0.1;      // rows in which a tie may fall differently in f32 and f64
inline constexpr double kIdealEncoding = 1e-3;   // values that lie on a grid, quantized again: f16 scales
inline constexpr double kRtnSqnrLow = 18.8;      // dB, int4 g128 on N(0, 1), scale 2 max / 15
inline constexpr double kRtnSqnrHigh = 19.4;
inline constexpr double kSlope = 1e-2;  // of a whole block's f32 output along a direction, by differences
// rounding errors of a hundred thousand values against their expected size
inline constexpr double kExpectedNoise = 0.1;
inline constexpr double kLossIdentity = 1e-3;  // sum of e^2 of an f32 column loop against the trace in f64

inline constexpr double kSearchedBlocks = 0.9;    // weighted error of a searched GGUF block against plain rounding
inline constexpr double kF16Minima = 5e-4;        // GGUF minima against integer zero points
inline constexpr double kReencodedBlocks = 1e-3;  // values that GGUF blocks decoded to, encoded again
// Counted memory beside its formula: never more than this above, and not less than this of it.
inline constexpr double kPeakAbove = 1.05, kPeakBelow = 0.9;
inline constexpr double kPlannedMemory = 0.1;  // of a run, against the plan
// Chi-squared of seven degrees of freedom that is passed by 999 of 1000 draws from the distribution itself.
inline constexpr double kChiSquared7 = 24.32;

// Errors of all linears of a model of a golden's size, calibrated on its few tokens by two ways that differ in
// roundings: over three texts their ratio was 0.984 to 1.008.
inline constexpr double kSameCalibration = 3e-2;

}  // namespace fewbit::tol
