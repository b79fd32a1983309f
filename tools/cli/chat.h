#pragma once
// The chat template of a command: --chat-template, or the checkpoint's own.
#include <filesystem>
#include <string>

#include "src/text/chat_template.h"

namespace fewbit::cli {

// As ChatTemplate::open; where the checkpoint has none, the refusal names the one that is usual for its family.
ChatTemplate open_chat(const std::filesystem::path& model, const std::string& name);

}  // namespace fewbit::cli
