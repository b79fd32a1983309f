#pragma once
// What strangers write, given to the readers of the library as bytes. Each ends in a result, which is dropped, or
// throws Error. `scratch` is a folder for a file that a
// reader wants to open.
#include <filesystem>
#include <string>

namespace fewbit::test {

using Scratch = std::filesystem::path;

// readers_formats.cpp
void read_safetensors_bytes(const std::string& bytes, const Scratch& scratch);
void read_gguf_bytes(const std::string& bytes, const Scratch& scratch);  // and config, names and tokenizer in it
// readers_model.cpp: a config.json with its op lists and its quantization_config, without tensors
void read_config_bytes(const std::string& bytes, const Scratch& scratch);
// readers_text.cpp
void read_tokenizer_bytes(const std::string& bytes, const Scratch& scratch);  // and texts through it
void read_template_bytes(const std::string& bytes, const Scratch& scratch);   // and a chat rendered
void read_documents_bytes(const std::string& bytes, const Scratch& scratch);  // .jsonl
void read_token_ids_bytes(const std::string& bytes, const Scratch& scratch);
// readers_run.cpp
void read_recipe_bytes(const std::string& bytes, const Scratch& scratch);
// Lines of a journal, which get the digests that they need to be looked at.
void read_journal_bytes(const std::string& bytes, const Scratch& scratch);
void read_report_bytes(const std::string& bytes, const Scratch& scratch);  // quant_report.json
void read_bench_bytes(const std::string& bytes, const Scratch& scratch);   // of `runner bench --json`
void read_tasks_bytes(const std::string& bytes, const Scratch& scratch);   // .jsonl

// Writes `scratch / name`.
std::filesystem::path put(const Scratch& scratch, const std::string& name, const std::string& bytes);

}  // namespace fewbit::test
