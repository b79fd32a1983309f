#include "src/text/files/packed_text.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

#include "src/core/error.h"
#include "src/text/files/text_file.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t{1} << 20;

bool is_packed(const fs::path& path) { return path.extension() == ".gz" || path.extension() == ".zst"; }

[[noreturn]] void damaged(const fs::path& path, const std::string& why) {
  fail(ErrorKind::checkpoint, fmt::format("{}: cannot be unpacked ({}); expected a whole {} file", path.string(), why,
                                          path.extension() == ".gz" ? "gzip" : "Zstandard"));
}

// zlib reads plain files as they are, which a name that ends in .gz promises not to be.
std::string gunzipped(const fs::path& path, int64_t most) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose_r);
  if (!file) fail(ErrorKind::io, path.string() + ": cannot be opened");
  std::string out;
  while (static_cast<int64_t>(out.size()) < most) {
    const size_t at = out.size();
    out.resize(at + static_cast<size_t>(std::min(kPiece, most - static_cast<int64_t>(at))));
    const int got = gzread(file.get(), out.data() + at, static_cast<unsigned>(out.size() - at));
    int code = Z_OK;
    const char* why = gzerror(file.get(), &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) damaged(path, why);
    out.resize(at + static_cast<size_t>(got));
    if (got == 0) break;
  }
  if (gzdirect(file.get())) damaged(path, "it is not packed");
  return out;
}

std::string unpacked_zstd(const fs::path& path, int64_t most) {
  const TextFile file(path);
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  std::string out;
  size_t left = 0;  // of the frame that is open: not 0 where the file ends within it
  for (int64_t at = 0; at < file.size() && static_cast<int64_t>(out.size()) < most;) {
    const std::string packed = file.read(at, kPiece);
    at += static_cast<int64_t>(packed.size());
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    bool full = true;  // the output was: there may be more of the same input
    while ((in.pos < in.size || full) && static_cast<int64_t>(out.size()) < most) {
      const size_t begin = out.size();
      out.resize(begin + static_cast<size_t>(std::min(kPiece, most - static_cast<int64_t>(begin))));
      ZSTD_outBuffer to{out.data() + begin, out.size() - begin, 0};
      left = ZSTD_decompressStream(stream.get(), &to, &in);
      if (ZSTD_isError(left)) damaged(path, ZSTD_getErrorName(left));
      full = to.pos == to.size;
      out.resize(begin + to.pos);
    }
  }
  if (left != 0 && static_cast<int64_t>(out.size()) < most) damaged(path, "it ends too early");
  return out;
}

}  // namespace

std::string text_extension(const fs::path& path) {
  return is_packed(path) ? path.stem().extension().string() : path.extension().string();
}

std::string read_start(const fs::path& path, int64_t most, bool* cut) {
  const TextFile file(path);  // refuses what is no file, or empty
  std::string text = !is_packed(path)            ? file.read(0, most + 1)
                     : path.extension() == ".gz" ? gunzipped(path, most + 1)
                                                 : unpacked_zstd(path, most + 1);
  *cut = static_cast<int64_t>(text.size()) > most;
  if (*cut) text.resize(static_cast<size_t>(most));
  if (text.empty()) fail(ErrorKind::checkpoint, path.string() + ": unpacks to nothing");
  return text;
}

}  // namespace fewbit
