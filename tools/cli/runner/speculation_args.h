#pragma once
// --speculate and --draft of `runner generate`, `serve` and `bench --concurrency`.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "src/model/checkpoint.h"
#include "src/run/speculate/speculation.h"
#include "src/text/tokenizer.h"

namespace fewbit::cli {

struct SpeculationArgs {
  std::string speculate = "off", draft;
};
// The two options are returned.
std::vector<CLI::Option*> add_speculation(CLI::App& app, SpeculationArgs&);
// What they ask for; a --draft alone asks for it. Error{usage} where one lacks the other.
SpeculateOptions speculation_of(const SpeculationArgs&);
// The same for many sequences at once, which take no MTP layer.
SpeculateOptions batch_speculation_of(const SpeculationArgs&);

// The draft model `name` of a model for sequences of `length` positions, by its config and tokenizer: no weight is
// read. Error{usage} where its positions are too few or its tokenizer knows other tokens than the model's: the first
// id that differs, or that of a text of several scripts.
Checkpoint draft_model(const std::string& name, const Checkpoint& model, const Tokenizer& tokenizer, int64_t length);

}  // namespace fewbit::cli
