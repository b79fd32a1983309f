#pragma once
// Internal to the safetensors container: one file's header, both directions. Nothing outside
// formats/containers includes this.
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/container.h"

namespace fewbit::safetensors {

inline constexpr uint64_t kMaxHeader = 100'000'000;  // bytes; the reference reader's limit

struct Header {
  std::vector<TensorInfo> tensors;  // in the order of the header; begin is absolute in the file
  std::map<std::string, std::string> metadata;
};

// Parses and checks one file by every rule of the format (checkpoint-formats paper, section 1.3). `where`
// names the file in messages. Error{checkpoint}, or Error{unsupported} for a dtype or rank that is valid but
// not ours.
Header parse(std::span<const uint8_t> file, const std::string& where);
// The same from the beginning of a file of `file_bytes`: `head` holds head_bytes() of it, or all where it is shorter.
Header parse(std::span<const uint8_t> head, int64_t file_bytes, const std::string& where);
// Bytes up to the data, as the file's first word says; 8 where the file cannot be one.
int64_t head_bytes(const MappedFile& file);

// The order in which the reference writer lays tensors out: dtype descending, then name ascending.
bool written_before(const TensorInfo& a, const TensorInfo& b);
void put_in_written_order(std::vector<const TensorInfo*>& tensors);

// Length word, JSON and padding for tensors already in their written order, laid out back to back. Ignores
// `begin`.
std::string serialize(const std::vector<const TensorInfo*>& tensors);

// Text for a message: control characters escaped, one line, at most 200 bytes.
std::string printable(std::string_view text);

std::unique_ptr<CheckpointWriter> create_writer(const std::filesystem::path& dir, const WriterOptions& options);

}  // namespace fewbit::safetensors
