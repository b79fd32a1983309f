#pragma once
// Files and folders as the system has them: what must be on the disk before something else is done, renames that
// replace nothing, and the exchange of two folders in one step. Every Error{io} has the path and the system's reason.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fewbit {

// An open file; closed with the object.
class File {
 public:
  static File read(const std::filesystem::path&);    // Error{io} unless a regular file
  static File append(const std::filesystem::path&);  // made where there is none; for read_at() too
  // open(2) as it is; not open() where that failed, with errno set.
  static File with_flags(const std::filesystem::path&, int flags);
  File(File&& o) noexcept;
  File& operator=(File&& o) noexcept;
  ~File();

  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  int64_t size() const;
  void read_at(int64_t begin, char* to, int64_t bytes) const;  // all of them
  std::string read_all() const;
  // In one call of the system; a part of it that was written before it failed is taken back.
  void append_whole(std::string_view bytes);
  void cut(int64_t bytes);  // truncates to so many
  void sync();              // returns when its bytes are on the disk
  [[noreturn]] void refuse(const char* what) const;

 private:
  File(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::filesystem::path path_;
  int fd_ = -1;
};

// All bytes of a file; "" where there is none or the system does not give it.
std::string text_or_empty(const std::filesystem::path&);

void sync_file(const std::filesystem::path&);
void sync_folder(const std::filesystem::path&);  // its entries; quiet on file systems that cannot
// Every file of a folder, of the folders in it, and these.
void sync_tree(const std::filesystem::path& folder);

// Renames where nothing has the new name yet; false where something has.
bool rename_to_new(const std::filesystem::path& from, const std::filesystem::path& to);
// Each gets the other's name in one step; false, and nothing done, where the file system cannot.
bool exchange(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace fewbit
