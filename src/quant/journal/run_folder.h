#pragma once
// RunFolder: OUT.partial, owned by one process. The file `owner` in it is locked (flock) for as long as the object
// lives, and says whose the folder is: a line with the mark of fewbit and a version, and a line with host, process
// and time. The folder appears with both in it, by a rename, and goes by a rename, so that nobody ever sees a folder
// of a run without its mark. What has no mark is never touched.
#include <filesystem>
#include <optional>
#include <string>

#include "src/core/file_io.h"

namespace fewbit {

// Where OUT really is: without a trailing slash, and where a symbolic link leads.
std::filesystem::path place_of(const std::filesystem::path& out);
std::filesystem::path partial_of(const std::filesystem::path& out);  // OUT.partial

// The process that a run's folder belongs to, as the folder says.
struct RunHolder {
  std::string host, started;  // "2026-11-23T23:30:00Z"
  int64_t pid = 0;
  std::optional<bool> holds{};  // whether it holds the folder now; nothing where this machine cannot tell
};
// Nothing where `dir` is no run's folder. Reads only, and locks nothing.
std::optional<RunHolder> holder_of_run(const std::filesystem::path& dir);

inline constexpr const char* kBuilt = "checkpoint";  // in OUT.partial: what becomes OUT
inline constexpr const char* kSampled =
    "sampled-text";  // in OUT.partial: ids that the model wrote (self_calibration.h)

class RunFolder {
 public:
  // Locks `dir`, or makes it. Error{usage}: in use, naming host and process; not a run's folder; another version's.
  static RunFolder claim(const std::filesystem::path& dir);
  // Only what is there: nothing where `dir` does not exist.
  static std::optional<RunFolder> take_over(const std::filesystem::path& dir);
  // Removes what runs at `dir` that were killed left beside it, of folders that came or went; claim() does it too.
  static void remove_leftovers(const std::filesystem::path& dir);
  RunFolder(RunFolder&&) noexcept = default;
  RunFolder& operator=(RunFolder&&) = delete;
  ~RunFolder();  // gives the lock back; a folder that was not to be kept goes

  const std::filesystem::path& dir() const { return dir_; }
  // Whether the folder outlives this object: false of one that was just made, true of one that was there.
  void keep(bool kept) { kept_ = kept; }
  void wipe();    // everything in it but the mark
  void remove();  // the folder; the lock ends

 private:
  RunFolder(std::filesystem::path dir, File owner, bool kept)
      : dir_(std::move(dir)), owner_(std::move(owner)), kept_(kept) {}
  static std::optional<RunFolder> make(const std::filesystem::path& dir);
  std::filesystem::path dir_;
  File owner_;
  bool kept_;
};

}  // namespace fewbit
