#pragma once
// What goes back to a client: texts made of tokens as they come, in one piece or as events.
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/cli/serve/api_request.h"
#include "tools/cli/serve/serving_loop.h"

namespace fewbit::cli {

// The text of one continuation. A character that is not whole yet, and what may become a stop text, is held back.
class GrowingText {
 public:
  // `stops` and `texts` must outlive it.
  GrowingText(ModelTexts& texts, const std::vector<std::string>& stops) : texts_(&texts), stops_(&stops) {}
  void add(int32_t token);
  bool stopped() const { return stopped_; }  // by a stop text, which is not part of what is taken
  std::string take(bool all);                // what is new and may be shown; all: of a continuation that has ended

 private:
  ModelTexts* texts_;
  const std::vector<std::string>* stops_;
  std::vector<int32_t> ids_;
  size_t before_ = 0, read_ = 0;  // tokens from before_ to read_ are in the text, and give the next ones their context
  std::string held_;
  bool stopped_ = false;
};

// An error in a stream that has begun.
std::string error_event(const ApiError&);

// The answer to one call: next() is asked until it returns false.
class ApiReply {
 public:
  ApiReply(ApiRequest, std::string model, ModelTexts&, ServingLoop&);
  // Error as ApiError, before anything is computed.
  void begin();
  // Appends what has come: events, or at the end the whole body. ApiError where it took too long or the engine failed.
  bool next(std::string& piece, double seconds_left);
  void cancel();  // what still runs of it

 private:
  struct Choice {
    explicit Choice(GrowingText t) : text(std::move(t)) {}
    GrowingText text;
    std::string whole;
    std::string finish;  // "" while it runs
    std::vector<TokenNews> logprobs;
    size_t logprobs_sent = 0;
    int64_t tokens = 0;
    bool role_sent = false;
  };
  void take(const TokenNews&, std::string& piece);
  void event(size_t choice, const std::string& text, std::string& piece);
  std::string last_event() const;
  int64_t new_tokens() const;
  std::string whole() const;

  ApiRequest request_;
  std::string model_, id_;
  int64_t created_;
  ModelTexts& texts_;
  ServingLoop& loop_;
  std::shared_ptr<NewsChannel> channel_ = std::make_shared<NewsChannel>();
  std::vector<int64_t> ids_;
  std::vector<Choice> choices_;  // prompt by prompt
  int64_t prompt_tokens_ = 0;
};

}  // namespace fewbit::cli
