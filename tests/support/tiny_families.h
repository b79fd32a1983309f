#pragma once
// A small config of every family, for tests that run over all of them on random weights (SynthOptions::config). Sizes
// are the least that every packing takes: 128 features, groups of 64.
#include <nlohmann/json.hpp>
#include <string_view>

namespace fewbit::test {

// The config of a class name. What a .gguf file could not say of a family is left out of it. Fails the test where the
// table has no line for the family.
nlohmann::json tiny_config_of(std::string_view class_name);

}  // namespace fewbit::test
