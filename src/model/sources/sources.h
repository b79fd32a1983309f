#pragma once
// The files of a model as they are read first: once, whole, for their digests and for values that are not finite,
// before anything is computed. What was found is recorded with the file's size, times and inode, so that an untouched
// file is not read again.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fewbit {

// A float tensor that holds NaN or infinities, by its name in the file.
struct NotFinite {
  std::string tensor;
  int64_t index = 0;  // of its first such element
};

struct SourceFile {
  std::string name;  // without its folder
  int64_t bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // mtime, ctime
  uint64_t inode = 0, device = 0;
  std::string digest{};  // digest_of_file()
  std::vector<NotFinite> not_finite{};
};

struct SourceReading {
  // Folders whose record of the model is believed, and gets what is read; "" = none. Of the run, and of the user.
  std::filesystem::path run{}, user{};
  bool rehash = false;                      // believe no record
  std::function<void(double)> progress{};   // the part that is done; on the caller's thread
  bool record = true;                       // what was read, in those folders
  const std::atomic<bool>* stop = nullptr;  // once it is true, reading ends by Error{stopped}
};

// The weight files of the model, in the order of its index. Error{io} where one cannot be read or changes meanwhile.
std::vector<SourceFile> read_sources(const std::filesystem::path& model, const SourceReading&);

std::string digests_of(const std::vector<SourceFile>&);  // of all files, in a line

// One line for every tensor that is not finite, a dozen at most; "" where there is none.
std::string not_finite_lines(const std::filesystem::path& model, const std::vector<SourceFile>&);

// $XDG_CACHE_HOME/fewbit, or ~/.cache/fewbit; "" where neither variable has an absolute path.
std::filesystem::path user_cache_folder();

}  // namespace fewbit
