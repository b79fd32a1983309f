#include "tools/cli/chat.h"

#include <fmt/format.h>

#include "src/model/archs.h"

namespace fewbit::cli {

ChatTemplate open_chat(const std::filesystem::path& model, const std::string& name) {
  try {
    return ChatTemplate::open(model, name);
  } catch (const Error& e) {
    if (!name.empty() || e.kind() != ErrorKind::usage || !std::filesystem::exists(model / "config.json")) throw;
    const std::string class_name = ConfigView::open(model).architecture();
    const Family* family = find_family(class_name);
    if (!family || family->chat.empty()) throw;
    fail(ErrorKind::usage, fmt::format("{}; usual for {}: {}", e.what(), class_name, family->chat));
  }
}

}  // namespace fewbit::cli
