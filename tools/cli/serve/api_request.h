#pragma once
// What a body of /v1/completions or /v1/chat/completions asks for, in the form of OpenAI's API.
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/run/paged/scheduler.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"

namespace fewbit::cli {

// The texts of a model; one caller at a time.
struct ModelTexts {
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat{};
  std::string no_chat{};  // why there is no template
  std::mutex mutex{};
};

struct ApiLimits {
  std::string model{};        // the one name that is known
  int64_t max_tokens = 1024;  // new ones of a request
  int64_t max_choices = 16;   // of all its prompts together
  int64_t max_body = 1 << 20;
};

struct ApiRequest {
  bool chat = false, stream = false, usage_in_stream = false, echo = false;
  int logprobs = -1;  // of how many likeliest tokens; -1: none
  std::vector<std::string> stops{};
  std::vector<ServedRequest> requests{};  // one for each prompt
  int64_t choices() const { return requests.front().choices; }
};

// A refusal in the API's form.
struct ApiError {
  int status = 400;
  std::string message{}, parameter{};
};
std::string error_json(const ApiError&);

// Throws ApiError for what is malformed, and for what is valid but not done here.
ApiRequest read_request(const std::string& body, bool chat, ModelTexts&, const ApiLimits&);

}  // namespace fewbit::cli
