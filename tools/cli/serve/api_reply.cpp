#include "tools/cli/serve/api_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "src/core/strings.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string token_text(ModelTexts& texts, int32_t id) {
  const std::lock_guard lock(texts.mutex);
  return texts.tokenizer.decode(std::span(&id, 1), false);
}

// Completions: lists side by side. The first token of an echoed prompt has no probability.
Json lists_of(ModelTexts& texts, std::span<const TokenNews> news) {
  Json tokens = Json::array(), values = Json::array(), top = Json::array(), offsets = Json::array();
  size_t offset = 0;
  for (const TokenNews& n : news) {
    const std::string text = token_text(texts, n.token);
    tokens.push_back(text);
    offsets.push_back(offset);
    offset += text.size();
    const bool known = n.position > 0;
    values.push_back(known ? Json(n.logprob) : Json());
    Json likeliest = Json::object();  // of tokens with one text the likeliest stays
    for (const auto& [id, value] : n.top) likeliest.emplace(token_text(texts, id), value);
    top.push_back(known ? std::move(likeliest) : Json());
  }
  return {{"tokens", tokens}, {"token_logprobs", values}, {"top_logprobs", top}, {"text_offset", offsets}};
}

Json entry_of(ModelTexts& texts, int32_t id, float value) {
  const std::string text = token_text(texts, id);
  return {{"token", text}, {"logprob", value}, {"bytes", std::vector<uint8_t>(text.begin(), text.end())}};
}

// Chat: an object for each token.
Json content_of(ModelTexts& texts, std::span<const TokenNews> news) {
  Json content = Json::array();
  for (const TokenNews& n : news) {
    Json entry = entry_of(texts, n.token, n.logprob), top = Json::array();
    for (const auto& [id, value] : n.top) top.push_back(entry_of(texts, id, value));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

Json envelope(const std::string& id, const char* object, int64_t created, const std::string& model, Json choices) {
  return {{"id", id}, {"object", object}, {"created", created}, {"model", model}, {"choices", std::move(choices)}};
}

Json usage_of(int64_t prompt, int64_t fresh) {
  return {{"prompt_tokens", prompt}, {"completion_tokens", fresh}, {"total_tokens", prompt + fresh}};
}

std::string fresh_id(bool chat) {
  std::random_device random;
  return fmt::format("{}-{:08x}{:08x}", chat ? "chatcmpl" : "cmpl", random(), random());
}

}  // namespace

void GrowingText::add(int32_t token) {
  if (stopped_) return;
  ids_.push_back(token);
  std::string fresh;
  {
    const std::lock_guard lock(texts_->mutex);
    const std::span<const int32_t> ids(ids_);
    const std::string known = texts_->tokenizer.decode(ids.subspan(before_, read_ - before_), true);
    const std::string all = texts_->tokenizer.decode(ids.subspan(before_), true);
    if (all.size() <= known.size() || ends_with(all, "\xef\xbf\xbd")) return;  // an unfinished character is U+FFFD
    fresh = all.substr(known.size());
  }
  before_ = read_;
  read_ = ids_.size();
  held_ += fresh;
  size_t first = std::string::npos;
  for (const std::string& stop : *stops_) first = std::min(first, held_.find(stop));
  if (first == std::string::npos) return;
  held_.resize(first);
  stopped_ = true;
}

std::string GrowingText::take(bool all) {
  if (all && !stopped_ && read_ < ids_.size()) {  // ends within a character
    const std::lock_guard lock(texts_->mutex);
    const std::span<const int32_t> ids(ids_);
    const std::string known = texts_->tokenizer.decode(ids.subspan(before_, read_ - before_), true);
    const std::string rest = texts_->tokenizer.decode(ids.subspan(before_), true);
    if (rest.size() > known.size()) held_ += rest.substr(known.size());
    read_ = ids_.size();
  }
  size_t keep = 0;  // the longest end that begins a stop text
  if (!all && !stopped_)
    for (const std::string& stop : *stops_)
      for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
        if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

ApiReply::ApiReply(ApiRequest request, std::string model, ModelTexts& texts, ServingLoop& loop)
    : request_(std::move(request)),
      model_(std::move(model)),
      id_(fresh_id(request_.chat)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      texts_(texts),
      loop_(loop) {}

void ApiReply::begin() {
  std::vector<ServingLoop::Ask> asks;
  for (const ServedRequest& r : request_.requests) {
    prompt_tokens_ += std::ssize(r.prompt);
    asks.push_back({.request = r, .logprobs = request_.logprobs});
    for (int64_t c = 0; c < r.choices; ++c) {
      Choice& choice = choices_.emplace_back(GrowingText(texts_, request_.stops));
      if (!request_.echo) continue;
      const std::lock_guard lock(texts_.mutex);
      choice.whole = texts_.tokenizer.decode(r.prompt, true);
      if (request_.logprobs >= 0) choice.logprobs.push_back({.position = 0, .token = r.prompt.front()});
    }
  }
  std::string why;
  switch (loop_.submit(std::move(asks), channel_, ids_, why)) {
    case ServingLoop::Taken::yes:
      return;
    case ServingLoop::Taken::full:
      throw ApiError{.status = 429, .message = "too many requests wait; try again later"};
    case ServingLoop::Taken::closing:
      throw ApiError{.status = 503, .message = "the server takes no more requests: " + why};
    case ServingLoop::Taken::never:
      throw ApiError{.message = why};
  }
}

void ApiReply::cancel() {
  if (std::ranges::any_of(choices_, [](const Choice& c) { return c.finish.empty(); }))
    for (const int64_t id : ids_) loop_.cancel(id);
}

void ApiReply::take(const TokenNews& news, std::string& piece) {
  const auto prompt = static_cast<size_t>(std::ranges::find(ids_, news.request) - ids_.begin());
  const auto each = static_cast<size_t>(request_.choices());
  if (news.token < 0 && news.finish == Finish::no) {  // of the prompt: for all its choices
    TokenNews own = news;
    own.token = request_.requests[prompt].prompt[static_cast<size_t>(news.position)];
    for (size_t c = prompt * each; c < (prompt + 1) * each; ++c) choices_[c].logprobs.push_back(own);
    return;
  }
  const size_t index = prompt * each + static_cast<size_t>(news.choice);
  Choice& c = choices_[index];
  if (!c.finish.empty()) return;
  if (news.token >= 0) {
    ++c.tokens;
    c.text.add(news.token);
    if (request_.logprobs >= 0) c.logprobs.push_back(news);
  }
  if (c.text.stopped()) {
    c.finish = "stop";
    if (news.finish == Finish::no) loop_.cancel(news.request, news.choice);
  } else if (news.finish != Finish::no) {
    c.finish = news.finish == Finish::stop ? "stop" : "length";
  }
  const std::string text = c.text.take(!c.finish.empty());
  if (!request_.stream) c.whole += text;
  if (request_.stream) event(index, (c.role_sent ? "" : c.whole) + text, piece);
}

void ApiReply::event(size_t index, const std::string& text, std::string& piece) {
  Choice& c = choices_[index];
  if (text.empty() && c.finish.empty() && c.logprobs_sent == c.logprobs.size()) return;
  Json choice = {{"index", index}};
  if (request_.chat) {
    choice["delta"] = Json::object();
    if (!c.role_sent) choice["delta"]["role"] = "assistant";
    choice["delta"]["content"] = text;
  } else {
    choice["text"] = text;
  }
  c.role_sent = true;
  const std::span<const TokenNews> fresh = std::span(c.logprobs).subspan(c.logprobs_sent);
  choice["logprobs"] = request_.logprobs < 0 ? Json()
                       : request_.chat       ? content_of(texts_, fresh)
                                             : lists_of(texts_, fresh);
  c.logprobs_sent = c.logprobs.size();
  choice["finish_reason"] = c.finish.empty() ? Json() : Json(c.finish);
  const char* object = request_.chat ? "chat.completion.chunk" : "text_completion";
  piece += "data: " + dump(envelope(id_, object, created_, model_, Json::array({std::move(choice)}))) + "\n\n";
}

std::string ApiReply::last_event() const {
  if (!request_.usage_in_stream) return "data: [DONE]\n\n";
  Json j = envelope(id_, request_.chat ? "chat.completion.chunk" : "text_completion", created_, model_, Json::array());
  j["usage"] = usage_of(prompt_tokens_, new_tokens());
  return "data: " + dump(j) + "\n\ndata: [DONE]\n\n";
}

int64_t ApiReply::new_tokens() const {
  int64_t n = 0;
  for (const Choice& c : choices_) n += c.tokens;
  return n;
}

std::string ApiReply::whole() const {
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& c = choices_[i];
    Json choice = {{"index", i}};
    if (request_.chat)
      choice["message"] = {{"role", "assistant"}, {"content", c.whole}};
    else
      choice["text"] = c.whole;
    choice["logprobs"] = request_.logprobs < 0 ? Json()
                         : request_.chat       ? content_of(texts_, c.logprobs)
                                               : lists_of(texts_, c.logprobs);
    choice["finish_reason"] = c.finish;
    choices.push_back(std::move(choice));
  }
  Json j = envelope(id_, request_.chat ? "chat.completion" : "text_completion", created_, model_, std::move(choices));
  j["usage"] = usage_of(prompt_tokens_, new_tokens());
  return dump(j) + "\n";
}

std::string error_event(const ApiError& e) { return "data: " + error_json(e) + "\n"; }

bool ApiReply::next(std::string& piece, double seconds_left) {
  for (const TokenNews& news : channel_->take(std::chrono::milliseconds(100))) take(news, piece);
  if (const std::string why = channel_->failure(); !why.empty()) throw ApiError{.status = 500, .message = why};
  if (std::ranges::any_of(choices_, [](const Choice& c) { return c.finish.empty(); })) {
    if (seconds_left > 0) return true;
    throw ApiError{.status = 504, .message = "not finished within --max-seconds"};
  }
  piece += request_.stream ? last_event() : whole();
  return false;
}

}  // namespace fewbit::cli
