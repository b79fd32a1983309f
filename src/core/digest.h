#pragma once
// XXH3-128, as 32 hexadecimal digits: finds accidents in files and records, at the speed of the disk. Not
// cryptographic.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fewbit {

inline constexpr size_t kDigestDigits = 32;

std::string digest_of(std::string_view bytes);

// Of a whole file, in pieces of 16 MiB side by side: the digest of the pieces' digests one after the other.
// Error{io} with the path where it cannot be read.
std::string digest_of_file(const std::filesystem::path&);

// Of parts of a file: its first and last MiB and 64 samples of 64 KiB at equal distances between. Cheap for any size.
std::string digest_of_samples(const std::filesystem::path&);

}  // namespace fewbit
