#include "src/quant/search/schemes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/core/strings.h"
#include "src/core/text/nearest.h"
#include "src/core/text/size_words.h"
#include "src/run/plan/gpus.h"

namespace fewbit {
namespace {

constexpr int kNoBits = 0;

// A word: integers of so many bits, or another recipe.
struct Scheme {
  std::string_view word{};
  int bits = kNoBits;
  std::string_view recipe{};
};
constexpr Scheme kSchemes[] = {{"int2", 2},
                               {"int3", 3},
                               {"int4", 4},
                               {"int5", 5},
                               {"int6", 6},
                               {"int8", 8},
                               {"nvfp4", kNoBits, "nvfp4"},
                               {"mxfp4", kNoBits, "mxfp4"},
                               {"fp8", kNoBits, "gptq fp8 gch acts=off"},
                               {"bf16", kNoBits, "keep"}};

// Candidates further than this from the target are never worth their calibration time.
constexpr double kBitsBelow = 1.6, kBitsAbove = 4.5;

bool is_float(const Scheme& s) { return s.bits == kNoBits && s.recipe != "keep"; }

std::vector<std::string_view> words() {
  std::vector<std::string_view> all;
  for (const Scheme& s : kSchemes) all.push_back(s.word);
  all.push_back(kAllSchemes);
  return all;
}

bool names(const std::vector<std::string>& schemes, std::string_view word) {
  return std::find(schemes.begin(), schemes.end(), word) != schemes.end();
}

Candidate candidate(const Recipe& base, const Recipe& over) {
  return {over, over.keep ? QuantSpec{} : resolve(overlay(base, over)).spec};
}

std::vector<Recipe> recipes_of(const Scheme& s, const Recipe& base) {
  if (s.bits == kNoBits) {
    Recipe r = parse_recipe(s.recipe);
    r.chain.clear();  // "gptq fp8": the word alone names a method
    return {r};
  }
  std::vector<Recipe> all;
  for (const int64_t group : {int64_t{-1}, int64_t{128}, int64_t{64}, int64_t{32}}) {
    if (s.bits > 4 && group != 128) continue;  // finer scales gain nothing there
    for (const bool symmetric : {true, false}) {
      // On the lab model zero points were worth their bits at 4 bits and in groups only.
      const bool usual = symmetric || (s.bits == 4 && group != -1);
      if (base.symmetric ? *base.symmetric == symmetric : usual)
        all.push_back({.grid = Grid::integer, .bits = s.bits, .group = group, .symmetric = symmetric});
    }
  }
  return all;
}

std::vector<Candidate> integers(const Recipe& base) {
  const double target = base.target_bits.value_or(kDefaultTargetBits);
  constexpr int64_t kAnyWidth = 128;
  std::vector<Candidate> all;
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const int64_t group : {128, 64, 32}) {
      Candidate c = candidate(base, {.bits = bits, .group = group});
      const double b = c.spec.bits_per_weight(kAnyWidth);
      if (!base.counts_bits() || (b > target - kBitsBelow && b < target + kBitsAbove)) all.push_back(std::move(c));
    }
  return all;
}

}  // namespace

std::vector<std::string> schemes_from(std::string_view list) {
  const std::vector<std::string_view> known = words();
  std::vector<std::string> schemes;
  for (const std::string& word : split(std::string(list), ',')) {
    if (std::find(known.begin(), known.end(), word) == known.end())
      fail(ErrorKind::usage, unknown_name("scheme of schemes= (--schemes)", word, known));
    if (!names(schemes, word)) schemes.push_back(word);
  }
  return schemes;
}

Budget budget_from(std::string_view text) {
  if (text == "all") return {};
  if (text == "active") return {.of = Budget::Of::active};
  if (const size_t at = text.find("ms@"); at != std::string_view::npos) {
    Budget b{.of = Budget::Of::step, .gpu = std::string(gpu_model(text.substr(at + 3), "budget= (--budget)").name)};
    const auto [end, error] = std::from_chars(text.data(), text.data() + at, b.step_ms);
    if (error == std::errc() && end == text.data() + at && b.step_ms > 0 && std::isfinite(b.step_ms)) return b;
  } else if (const double bytes = bytes_in_words(text); bytes >= 1 && bytes < 0x1p62) {
    return {.of = Budget::Of::size, .bytes = static_cast<int64_t>(bytes)};
  }
  fail(ErrorKind::usage,
       fmt::format("budget= (--budget): expected all, active, the size of the checkpoint, such as 5GB "
                   "or 512MiB, or the time of a step on a GPU, such as 2.5ms@rtx4090, found \"{}\"",
                   text));
}

bool has_floats(const std::vector<std::string>& schemes) {
  return names(schemes, kAllSchemes) || std::any_of(std::begin(kSchemes), std::end(kSchemes), [&](const Scheme& s) {
           return is_float(s) && names(schemes, s.word);
         });
}

std::vector<Candidate> candidates_of(const Recipe& base) {
  if (base.schemes.empty()) return integers(base);
  const bool all = names(base.schemes, kAllSchemes);
  const double target = base.target_bits.value_or(kDefaultTargetBits);
  std::vector<Candidate> found;
  for (const Scheme& s : kSchemes) {
    if (!all && !names(base.schemes, s.word)) continue;
    for (const Recipe& over : recipes_of(s, base)) {
      try {
        Candidate c = candidate(base, over);
        const bool far = base.counts_bits() && s.bits != kNoBits && s.bits < target - kBitsBelow;
        if (!all || !far) found.push_back(std::move(c));
      } catch (const Error& e) {
        if (!all) fail(e.kind(), fmt::format("schemes= (--schemes), {}: {}", s.word, e.what()));
      }
    }
  }
  return found;
}

}  // namespace fewbit
