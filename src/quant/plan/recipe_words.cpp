#include "src/quant/plan/recipe_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/core/registry.h"
#include "src/core/strings.h"
#include "src/core/text/nearest.h"
#include "src/quant/method.h"
#include "src/quant/transform.h"

namespace fewbit {
namespace {

struct Elsewhere {
  std::string_view name, what;
};
constexpr Elsewhere kElsewhere[] = {
#define FEWBIT_ELSEWHERE(name, what) {#name, what},
#include "src/quant/plan/methods_elsewhere.def"
#undef FEWBIT_ELSEWHERE
};

// Usual words of what apply_word() takes by a pattern, and the words that stand alone.
constexpr std::string_view kGridWords[] = {"int2",  "int3",  "int4", "int5", "int6",   "int7",    "int8",    "g32",
                                           "g64",   "g128",  "gch",  "sym",  "asym",   "tensor",  "w8a8",    "w4a4",
                                           "nvfp4", "mxfp4", "keep", "fp8",  "source", "channel", "block128"};

std::vector<std::string_view> chain_names() {
  std::vector<std::string_view> names = names_of(methods());
  names.push_back("auto");
  for (const Transform* t : transforms()) names.push_back(t->name);
  return names;
}

// The chain with every part in the place of the nearest name; "" where a part has none.
std::string mended_chain(const std::vector<std::string>& parts) {
  const std::vector<std::string_view> names = chain_names();
  std::vector<std::string> mended;
  mended.reserve(parts.size());
  for (const std::string& part : parts) mended.emplace_back(nearest(part, names));
  return std::find(mended.begin(), mended.end(), "") == mended.end() ? join(mended, "+") : "";
}

std::string mended_word(const std::string& word, std::span<const std::string_view> settings) {
  std::vector<std::string_view> all = chain_names();
  all.insert(all.end(), std::begin(kGridWords), std::end(kGridWords));
  all.insert(all.end(), settings.begin(), settings.end());
  return std::string(nearest(word, all));
}

std::string of_another_program(const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    for (const Elsewhere& e : kElsewhere)
      if (edit_distance(e.name, part) == 0) return fmt::format("; {} {}", e.name, e.what);
  return "";
}

}  // namespace

void refuse_word(const std::string& word, std::span<const std::string_view> settings) {
  const std::vector<std::string> parts = split(word, '+');
  const std::string mended = parts.size() > 1 ? mended_chain(parts) : mended_word(word, settings);
  const std::string elsewhere = of_another_program(parts);
  const std::string question =
      mended.empty() || !elsewhere.empty() ? "" : fmt::format("; did you mean \"{}\"?", mended);
  fail(ErrorKind::usage,
       fmt::format("RECIPE: unknown word \"{}\"{}{}{} expected a method ({}, auto), alone or behind transforms ({}: "
                   "awq+gptq) and rotate+, then words of the grid (int4 g128 sym asym gch fp8 nvfp4 mxfp4 w8a8 w4a4 "
                   "block128 …) and "
                   "settings ({}=); for example \"gptq int4 g128 act=off\"",
                   word, question, elsewhere, question.empty() ? ";" : "", fmt::join(names_of(methods()), ", "),
                   fmt::join(names_of(transforms()), ", "), fmt::join(settings, "= ")));
}

}  // namespace fewbit
