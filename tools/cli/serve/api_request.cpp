// Bodies of requests, key by key. A key that asks for something which is not done here is refused, and so is one that
// is not known: what would be overlooked silently could be what the measurement was about.
#include "tools/cli/serve/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "formats/guarded_json.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& parameter, const std::string& message) {
  throw ApiError{.message = message, .parameter = parameter};
}

// The keys of a body, of which null is as good as absent.
struct Body {
  const Json& j;

  const Json* find(const char* key) const {
    const auto found = j.find(key);
    return found == j.end() || found->is_null() ? nullptr : &*found;
  }
  double number(const char* key, double otherwise, double least, double most) const {
    const Json* v = find(key);
    if (!v) return otherwise;
    if (!v->is_number()) refuse(key, fmt::format("{}: expected a number", key));
    const double x = v->get<double>();
    if (!(x >= least && x <= most)) refuse(key, fmt::format("{}: expected {} to {}, found {}", key, least, most, x));
    return x;
  }
  int64_t whole(const char* key, int64_t otherwise, int64_t least, int64_t most) const {
    const Json* v = find(key);
    if (!v) return otherwise;
    if (!v->is_number_integer()) refuse(key, fmt::format("{}: expected a whole number", key));
    const double x = v->get<double>();
    if (!(x >= static_cast<double>(least) && x <= static_cast<double>(most)))
      refuse(key, fmt::format("{}: expected {} to {}, found {}", key, least, most, v->dump()));
    return v->get<int64_t>();
  }
  bool flag(const char* key, bool otherwise) const {
    const Json* v = find(key);
    if (v && !v->is_boolean()) refuse(key, fmt::format("{}: expected true or false", key));
    return v ? v->get<bool>() : otherwise;
  }
};

// Keys that request_of() and what it calls read.
constexpr std::array kRead = {"model",
                              "prompt",
                              "messages",
                              "chat_template_kwargs",
                              "add_generation_prompt",
                              "stream",
                              "stream_options",
                              "echo",
                              "logprobs",
                              "top_logprobs",
                              "max_tokens",
                              "max_completion_tokens",
                              "n",
                              "best_of",
                              "stop",
                              "seed",
                              "temperature",
                              "top_p",
                              "top_k",
                              "min_p",
                              "ignore_eos",
                              "response_format"};
// Keys that say nothing about the text.
constexpr std::array kSilent = {"user",
                                "metadata",
                                "store",
                                "service_tier",
                                "safety_identifier",
                                "prompt_cache_key",
                                "prompt_cache_retention",
                                "parallel_tool_calls",
                                "request_id"};
// Keys that clients send with a value that asks for nothing, and those values; null is one as well.
const std::map<std::string, std::vector<Json>>& neutral_values() {
  static const std::map<std::string, std::vector<Json>> values = {{"presence_penalty", {Json(0)}},
                                                                  {"frequency_penalty", {Json(0)}},
                                                                  {"repetition_penalty", {Json(1)}},
                                                                  {"length_penalty", {Json(1)}},
                                                                  {"use_beam_search", {Json(false)}},
                                                                  {"min_tokens", {Json(0)}},
                                                                  {"skip_special_tokens", {Json(true)}},
                                                                  {"spaces_between_special_tokens", {Json(true)}},
                                                                  {"include_stop_str_in_output", {Json(false)}},
                                                                  {"continue_final_message", {Json(false)}},
                                                                  {"stop_token_ids", {Json::array()}},
                                                                  {"suffix", {Json("")}},
                                                                  {"tools", {Json::array()}},
                                                                  {"functions", {Json::array()}},
                                                                  {"logit_bias", {Json::object()}},
                                                                  {"tool_choice", {Json("none"), Json("auto")}},
                                                                  {"function_call", {Json("none"), Json("auto")}},
                                                                  {"reasoning_effort", {Json("none")}},
                                                                  {"verbosity", {Json("medium")}},
                                                                  {"modalities", {Json::array({"text"})}}};
  return values;
}

void refuse_what_is_not_done(const Body& b) {
  for (const auto& [key, value] : b.j.items()) {
    if (value.is_null() || std::ranges::find(kRead, key) != kRead.end() ||
        std::ranges::find(kSilent, key) != kSilent.end())
      continue;
    const auto neutral = neutral_values().find(key);
    if (neutral == neutral_values().end())
      refuse(key, fmt::format("{}: not known here; leave it out", key.substr(0, 64)));
    if (std::ranges::find(neutral->second, value) == neutral->second.end())
      refuse(key, fmt::format("{}: not done here; leave it out, or {}", key, neutral->second.front().dump()));
  }
  if (const Json* f = b.find("response_format"); f && (!f->is_object() || f->value("type", Json()) != "text"))
    refuse("response_format", "response_format: output is not constrained here; leave it out, or {\"type\": \"text\"}");
  if (const Json* best = b.find("best_of"); best && *best != (b.find("n") ? *b.find("n") : Json(1)))
    refuse("best_of", "best_of: every choice is returned; leave it out, or equal to n");
}

std::vector<std::string> stops_of(const Body& b) {
  const Json* v = b.find("stop");
  if (!v) return {};
  const Json list = v->is_array() ? *v : Json::array({*v});
  if (list.size() > 16) refuse("stop", "stop: 16 texts at most");
  std::vector<std::string> stops;
  for (const Json& s : list) {
    if (!s.is_string()) refuse("stop", "stop: expected a text or a list of texts");
    if (const auto& text = s.get_ref<const std::string&>(); !text.empty()) stops.push_back(text);
    if (!stops.empty() && stops.back().size() > 256) refuse("stop", "stop: a text of 256 bytes at most");
  }
  return stops;
}

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& v : list) {
    if (!v.is_number_integer() || v.get<double>() < 0 || v.get<double>() > 2147483647.)
      refuse("prompt", "prompt: expected texts, or lists of token ids");
    ids.push_back(v.get<int32_t>());
  }
  return ids;
}

// A text, a list of ids, or a list of either.
std::vector<std::vector<int32_t>> prompts_of(const Body& b, ModelTexts& texts) {
  const Json* v = b.find("prompt");
  if (!v) refuse("prompt", "prompt: expected a text, found nothing");
  const bool one = v->is_string() || (v->is_array() && !v->empty() && (*v)[0].is_number());
  const Json list = one ? Json::array({*v}) : *v;
  if (!list.is_array() || list.empty()) refuse("prompt", "prompt: expected texts, or lists of token ids");
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& p : list) {
    if (!p.is_string() && !p.is_array()) refuse("prompt", "prompt: expected texts, or lists of token ids");
    const std::lock_guard lock(texts.mutex);
    prompts.push_back(p.is_array() ? ids_of(p) : texts.tokenizer.encode(p.get_ref<const std::string&>()));
  }
  return prompts;
}

std::vector<int32_t> chat_ids(const Body& b, ModelTexts& texts) {
  if (!texts.chat) refuse("messages", texts.no_chat);
  const Json* messages = b.find("messages");
  if (!messages || !messages->is_array() || messages->empty())
    refuse("messages", "messages: expected a list of messages");
  for (const Json& m : *messages)
    if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
      refuse("messages", "messages: expected objects with a role");
  const Json* more = b.find("chat_template_kwargs");
  if (more && !more->is_object()) refuse("chat_template_kwargs", "chat_template_kwargs: expected an object");
  const Chat chat{.messages = messages->dump(),
                  .more = more ? more->dump() : "",
                  .add_generation_prompt = b.flag("add_generation_prompt", true)};
  const std::lock_guard lock(texts.mutex);
  try {
    return texts.tokenizer.encode(texts.chat->render(chat), Special::none);
  } catch (const Error& e) {
    refuse("messages", e.what());
  }
}

int logprobs_of(const Body& b, bool chat) {
  if (!chat) return static_cast<int>(b.whole("logprobs", -1, 0, 20));
  if (!b.flag("logprobs", false)) {
    if (b.find("top_logprobs")) refuse("top_logprobs", "top_logprobs: expected logprobs: true beside it");
    return -1;
  }
  return static_cast<int>(b.whole("top_logprobs", 0, 0, 20));
}

SamplerOptions sampler_of(const Body& b) {
  SamplerOptions s{.temperature = static_cast<float>(b.number("temperature", 1, 0, 100)),
                   .top_k = static_cast<int>(b.whole("top_k", 0, -1, 1 << 30)),
                   .top_p = static_cast<float>(b.number("top_p", 1, 0, 1)),
                   .min_p = static_cast<float>(b.number("min_p", 0, 0, 1))};
  s.top_k = std::max(s.top_k, 0);
  const Json* seed = b.find("seed");
  if (seed && !seed->is_number_integer()) refuse("seed", "seed: expected a whole number");
  s.seed =
      seed ? static_cast<uint64_t>(b.whole("seed", 0, -(int64_t{1} << 53), int64_t{1} << 53)) : std::random_device{}();
  return s;
}

ApiRequest request_of(const Body& b, bool chat, ModelTexts& texts, const ApiLimits& limits) {
  const Json* model = b.find("model");
  if (model && !model->is_string()) refuse("model", "model: expected a text");
  if (model && *model != limits.model)
    throw ApiError{
        .status = 404,
        .message = fmt::format("model: no {} here; the model is \"{}\"", model->dump().substr(0, 100), limits.model),
        .parameter = "model"};
  refuse_what_is_not_done(b);
  ApiRequest r{.chat = chat, .stream = b.flag("stream", false), .logprobs = logprobs_of(b, chat), .stops = stops_of(b)};
  r.echo = !chat && b.flag("echo", false);
  if (const Json* o = b.find("stream_options")) {
    if (!o->is_object()) refuse("stream_options", "stream_options: expected an object");
    r.usage_in_stream = Body{*o}.flag("include_usage", false);
  }
  const char* length = chat && b.find("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  ServedRequest common{.max_tokens = b.whole(length, chat ? std::min<int64_t>(256, limits.max_tokens) : 16,
                                             r.echo ? 0 : 1, limits.max_tokens),
                       .sampler = sampler_of(b),
                       .choices = b.whole("n", 1, 1, limits.max_choices),
                       .stop_at_eos = !b.flag("ignore_eos", false),
                       .prompt_logits = r.echo && r.logprobs >= 0,
                       .logits = r.logprobs >= 0};
  std::vector<std::vector<int32_t>> prompts;
  if (chat)
    prompts.push_back(chat_ids(b, texts));
  else
    prompts = prompts_of(b, texts);
  if (std::ssize(prompts) * common.choices > limits.max_choices)
    refuse("n", fmt::format("{} prompts of {} choices: {} at most in one request", prompts.size(), common.choices,
                            limits.max_choices));
  for (std::vector<int32_t>& p : prompts) {
    r.requests.push_back(common);
    r.requests.back().prompt = std::move(p);
  }
  return r;
}

}  // namespace

std::string error_json(const ApiError& e) {
  const char* type = e.status == 401   ? "authentication_error"
                     : e.status == 429 ? "rate_limit_error"
                     : e.status >= 500 ? "server_error"
                                       : "invalid_request_error";
  const Json j = {{"error",
                   {{"message", e.message},
                    {"type", type},
                    {"param", e.parameter.empty() ? Json() : Json(e.parameter)},
                    {"code", e.status}}}};
  return j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

ApiRequest read_request(const std::string& body, bool chat, ModelTexts& texts, const ApiLimits& limits) {
  try {
    const Json j = parse_ordered_json(body, "body", {.text = limits.max_body, .memory = 16 * limits.max_body});
    if (!j.is_object()) refuse("", "body: expected an object");
    return request_of(Body{j}, chat, texts, limits);
  } catch (const Error& e) {
    throw ApiError{.message = e.what()};
  } catch (const Json::exception& e) {
    throw ApiError{.message = std::string("body: ") + e.what()};
  }
}

}  // namespace fewbit::cli
