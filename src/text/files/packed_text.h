#pragma once
// Texts that lie packed on the disk: NAME.gz (zlib) and NAME.zst (Zstandard).
#include <filesystem>
#include <string>

namespace fewbit {

// "a.jsonl.gz" -> ".jsonl"; "a.txt" -> ".txt". The ending of what is inside.
std::string text_extension(const std::filesystem::path&);

// Up to `most` bytes of the text: of a packed file, of what it unpacks to. `cut` says whether there is more. Several
// members or frames behind one another are one text. Error{io}; Error{checkpoint} on an empty file, and on a packed one
// that is damaged or ends too early.
std::string read_start(const std::filesystem::path&, int64_t most, bool* cut);

}  // namespace fewbit
