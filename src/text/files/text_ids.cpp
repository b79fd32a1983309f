#include "src/text/files/text_ids.h"

namespace fewbit {
namespace {

constexpr int64_t kReach = int64_t{1} << 20;  // how far behind a part's size its end is looked for

}  // namespace

int64_t tokenize_parts(const Tokenizer& tokenizer, const TextFile& file, Special special, int64_t part,
                       const std::function<void(std::vector<int32_t>)>& take) {
  int64_t parts = 0;
  for (int64_t at = 0; at < file.size(); ++parts) {
    const int64_t end = file.size() - at <= part ? file.size() : file.start_from(at + part, kReach);
    std::vector<int32_t> ids = tokenizer.encode(file.read(at, end - at), Special::none);
    if (special == Special::add && at == 0)
      ids.insert(ids.begin(), tokenizer.prefix().begin(), tokenizer.prefix().end());
    if (special == Special::add && end == file.size())
      ids.insert(ids.end(), tokenizer.suffix().begin(), tokenizer.suffix().end());
    take(std::move(ids));
    at = end;
  }
  return parts;
}

}  // namespace fewbit
