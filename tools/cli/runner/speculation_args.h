#pragma once
// --speculate and --draft of `runner generate`.
#include <CLI/CLI.hpp>
#include <string>

#include "src/model/checkpoint.h"
#include "src/text/tokenizer.h"

namespace fewbit::cli {

// `speculate` is checked by speculate_from().
void add_speculation(CLI::App& app, std::string& speculate, std::string& draft);

// The draft model `name` of a model for sequences of `length` positions, by its config and tokenizer: no weight is
// read. Error{usage} where its positions are too few or its tokenizer knows other tokens than the model's: the first
// id that differs, or that of a text of several scripts.
Checkpoint draft_model(const std::string& name, const Checkpoint& model, const Tokenizer& tokenizer, int64_t length);

}  // namespace fewbit::cli
