#pragma once
// XXH3-128, as 32 hexadecimal digits: finds accidents in files and records, at the speed of the disk. Not
// cryptographic.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace fewbit {

inline constexpr size_t kDigestDigits = 32;

std::string digest_of(std::string_view bytes);

// Of any number of bytes, in pieces of 16 MiB side by side: the digest of the pieces' digests one after the other.
std::string digest_of_pieces(const void* bytes, int64_t count);

// What else may be done while a file is read for its digest.
struct FileReading {
  // Is shown bytes [begin, end) of the file, from several threads, every byte once. Up to 8 bytes in front of `bytes`
  // are readable too, as many as the file has there, so that an element on the border can be looked at whole.
  std::function<void(int64_t begin, int64_t end, const uint8_t* bytes)> see{};
  std::function<void(int64_t bytes)> done{};  // after every part that was read, from several threads
  bool drop_pages = false;                    // the system need not keep the file's pages for a second reading
};

// digest_of_pieces() of a whole file, which is read once. Error{io} with the path where it cannot be read.
std::string digest_of_file(const std::filesystem::path&, const FileReading& = {});

}  // namespace fewbit
