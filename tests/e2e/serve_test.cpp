// `runner serve` as clients meet it: a server on a free port, and plain sockets.
#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include "src/text/tokenizer.h"
#include "tests/support/command_test.h"
#include "tests/support/http_client.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

const std::string kCompletions = "/v1/completions", kChat = "/v1/chat/completions";
const std::string kLong = R"("max_tokens": 900, "ignore_eos": true, "temperature": 0)";  // seconds, not milliseconds

class Serve : public CommandTest {
 protected:
  void SetUp() override {
    if (!RunningServer::built()) GTEST_SKIP() << "this build has no HTTP: install libcpp-httplib-dev";
  }
  void start(const std::string& flags = "") {
    server = std::make_unique<RunningServer>("--threads 2 --name demo '" + kDemo + "' " + flags);
    ASSERT_GT(server->port(), 0) << server->printed();
  }
  HttpAnswer call(const std::string& request) const {
    const Connection c(server->port());
    EXPECT_TRUE(c.send(request));
    return http_answer(c.rest());
  }
  HttpAnswer get(const std::string& path, const std::string& headers = "") const {
    return call(http_request("GET", path, "", headers));
  }
  HttpAnswer post(const std::string& path, const std::string& body) const {
    return call(http_request("POST", path, body));
  }
  Json ask(const std::string& path, const std::string& body) const {
    const HttpAnswer a = post(path, body);
    EXPECT_EQ(a.status, 200) << body << "\n" << a.body;
    return Json::parse(a.body, nullptr, false);
  }
  // Choice 0 of a stream, put together.
  std::string streamed(const std::string& path, const std::string& body, Json& last) const {
    const HttpAnswer a = post(path, body);
    EXPECT_EQ(a.headers.at("content-type"), "text/event-stream");
    const std::vector<std::string> events = events_of(a.body);
    EXPECT_FALSE(events.empty() || events.back() != "[DONE]") << a.body;
    std::string text;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      last = Json::parse(events[i]);
      for (const Json& c : last["choices"])
        text += c.contains("delta") ? c["delta"].value("content", "") : c["text"].get<std::string>();
    }
    return text;
  }
  int64_t metric(const std::string& name) const {
    std::istringstream lines(get("/metrics").body);
    std::string line;
    while (std::getline(lines, line))
      if (line.starts_with("fewbit_" + name + " ")) return std::stoll(line.substr(line.rfind(' ')));
    return -1;
  }
  // False after a minute.
  bool comes(const std::string& name, const std::function<bool(int64_t)>& wanted) const {
    for (int tries = 0; tries < 3000; ++tries) {
      if (wanted(metric(name))) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  std::unique_ptr<RunningServer> server;
};

TEST_F(Serve, CompletionsAreThoseOfGenerate) {
  const Json own = json("runner generate '" + kDemo + "' --prompt 'Once upon' --max-tokens 24 --device cpu");
  start();
  const std::string body = R"({"model": "demo", "prompt": "Once upon", "max_tokens": 24, "temperature": 0)";
  const Json r = ask(kCompletions, body + "}");
  const std::string text = r["choices"][0]["text"];
  EXPECT_EQ(own["text"], text);
  EXPECT_EQ(r["usage"]["prompt_tokens"], own["prompt_ids"].size());
  EXPECT_EQ(r["usage"]["completion_tokens"], own["ids"].size());
  Json last;
  EXPECT_EQ(streamed(kCompletions, body + R"(, "stream": true, "stream_options": {"include_usage": true}})", last),
            text);
  EXPECT_EQ(last["usage"], r["usage"]);
  // Ids in place of the text, twice, and what was written before the answer.
  const Json both = ask(kCompletions, body + R"(, "echo": true, "prompt": [)" + own["prompt_ids"].dump() + "," +
                                          own["prompt_ids"].dump() + "]}");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(both["choices"][i]["text"], std::string("Once upon") + text) << i;
  // Up to a text within it.
  const std::string stop = text.substr(text.size() / 2, 4);
  const Json cut = ask(kCompletions, body + R"(, "stop": [")" + stop + R"("]})");
  EXPECT_EQ(cut["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(streamed(kCompletions, body + R"(, "stream": true, "stop": ")" + stop + R"("})", last),
            text.substr(0, text.find(stop)));
}

// Greedy and sampled, by n-grams and by the model itself as its draft.
TEST_F(Serve, DraftsLeaveTheAnswers) {
  const std::string greedy = R"({"prompt": "Once upon a time, once upon a", "max_tokens": 64, "temperature": 0})";
  const std::string sampled = R"({"prompt": "Once upon a", "max_tokens": 24, "n": 2, "temperature": 0.5, "seed": 3})";
  start();
  const Json plain = ask(kCompletions, greedy)["choices"], random = ask(kCompletions, sampled)["choices"];
  EXPECT_EQ(metric("drafted_tokens_total"), 0);
  for (const std::string flags : {"--speculate ngram:5", "--speculate draft:3 --draft"}) {
    start(flags + (flags.ends_with("--draft") ? " '" + kDemo + "'" : ""));
    EXPECT_EQ(ask(kCompletions, greedy)["choices"], plain) << flags;
    EXPECT_EQ(ask(kCompletions, sampled)["choices"], random) << flags;
    EXPECT_GT(metric("draft_accepted_tokens_total"), 0) << flags;
  }
}

TEST_F(Serve, SeedsAndChoices) {
  start();
  const std::string body = R"({"prompt": "The", "max_tokens": 12, "n": 3, "seed": )";
  const Json a = ask(kCompletions, body + "7}"), b = ask(kCompletions, body + "7}"), c = ask(kCompletions, body + "8}");
  ASSERT_EQ(a["choices"].size(), 3u);
  EXPECT_EQ(a["choices"], b["choices"]);
  EXPECT_NE(a["choices"], c["choices"]);
  EXPECT_NE(a["choices"][0]["text"], a["choices"][1]["text"]);
}

TEST_F(Serve, LogprobsOfAPromptAreThoseOfItsGeneration) {
  start();
  const Json r =
      ask(kCompletions, R"({"prompt": "Once", "max_tokens": 6, "temperature": 0, "logprobs": 2, "echo": true})");
  const Json lists = r["choices"][0]["logprobs"];
  const size_t n = lists["tokens"].size(), fresh = r["usage"]["completion_tokens"];
  EXPECT_TRUE(lists["token_logprobs"][0].is_null());
  const Json again = ask(kCompletions, R"({"prompt": )" + r["choices"][0]["text"].dump() +
                                           R"(, "max_tokens": 0, "logprobs": 2, "echo": true})")["choices"][0];
  ASSERT_EQ(again["logprobs"]["tokens"], lists["tokens"]);
  for (size_t i = 1; i < n; ++i) {
    const double x = lists["token_logprobs"][i], y = again["logprobs"]["token_logprobs"][i];
    EXPECT_NEAR(x, y, tol::kLogitsBf16 * std::abs(x)) << i;
    double top = -1e30;
    for (const auto& [token, value] : lists["top_logprobs"][i].items()) top = std::max(top, value.get<double>());
    EXPECT_LT(top, 0);
    EXPECT_TRUE(i + fresh < n || x == top) << "not chosen greedily: " << i;
  }
}

TEST_F(Serve, ChatGoesThroughTheTemplate) {
  start("--chat-template chatml");
  const std::string body =
      R"({"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "max_tokens": 16)";
  const Json r = ask(kChat, body + R"(, "logprobs": true, "top_logprobs": 1})"), choice = r["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(r["object"], "chat.completion");
  EXPECT_EQ(choice["logprobs"]["content"].size(), r["usage"]["completion_tokens"]);
  const std::vector<int32_t> ids = Tokenizer::open(kDemo).encode(
      "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n", Special::none);
  const Json plain =
      ask(kCompletions, R"({"prompt": )" + Json(ids).dump() + R"(, "temperature": 0, "max_tokens": 16})");
  EXPECT_EQ(r["usage"], plain["usage"]);
  EXPECT_EQ(choice["message"]["content"], plain["choices"][0]["text"]);
  Json last;
  EXPECT_EQ(choice["message"]["content"], streamed(kChat, body + R"(, "stream": true})", last));
  EXPECT_EQ(last["choices"][0]["finish_reason"], choice["finish_reason"]);
}

TEST_F(Serve, WhatCannotBeDoneIsRefusedInOneLine) {
  start("--max-body 4096");
  const std::string p = R"({"prompt": "a", )";
  const std::tuple<std::string, int, std::string> bodies[] = {
      {"", 400, "body"},
      {"{", 400, "body"},
      {"[1]", 400, "object"},
      {"{\"prompt\": \"\xff\"}", 400, ""},
      {std::string(2000, '['), 400, ""},
      {R"({"max_tokens": 3})", 400, "prompt"},
      {R"({"prompt": 3})", 400, "prompt"},
      {R"({"prompt": {}})", 400, "prompt"},
      {R"({"prompt": [[]]})", 400, "no tokens"},
      {R"({"prompt": [-1]})", 400, "prompt"},
      {R"({"prompt": [99999]})", 400, "vocabulary"},
      {p + R"("max_tokens": "7"})", 400, "max_tokens"},
      {p + R"("max_tokens": 1e9})", 400, "max_tokens"},
      {p + R"("max_tokens": 1024})", 400, "positions"},
      {p + R"("n": 1000})", 400, "n:"},
      {p + R"("temperature": -1})", 400, "temperature"},
      {p + R"("logprobs": 99})", 400, "logprobs"},
      {p + R"("stop": [1]})", 400, "stop"},
      {p + R"("response_format": {"type": "json_object"}})", 400, "response_format"},
      {p + R"("frequency_penalty": 1})", 400, "frequency_penalty"},
      {p + R"("guided_regex": "a"})", 400, "guided_regex"},
      {p + R"("stream_options": 1})", 400, "stream_options"},
      {p + R"("model": "gpt"})", 404, "demo"},
      {std::string(5000, ' '), 413, "--max-body"}};
  for (const auto& [body, status, word] : bodies) {
    const HttpAnswer a = post(kCompletions, body);
    EXPECT_EQ(a.status, status) << body << "\n" << a.body;
    const Json j = Json::parse(a.body, nullptr, false);
    ASSERT_TRUE(j.is_object()) << body << "\n" << a.body;
    EXPECT_NE(j["error"]["message"].get<std::string>().find(word), std::string::npos) << body << "\n" << a.body;
  }
  EXPECT_EQ(post(kChat, R"({"messages": [{"role": "user", "content": "a"}]})").status, 400);  // there is no template
  const std::string head = "POST " + kCompletions + " HTTP/1.1\r\nHost: a\r\n";
  const std::pair<std::string, int> heads[] = {
      {http_request("PUT", kCompletions), 405},
      {http_request("GET", kCompletions), 405},
      {http_request("POST", "/health", "{}"), 405},
      {http_request("GET", "/etc/passwd"), 404},
      {http_request("GET", std::string(4000, '/')), 404},
      {head + "\r\n{}", 411},
      {head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 411},
      {head + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415},
      {head + "rAnge: bytes=0-1\r\nContent-Length: 2\r\n\r\n{}", 400},
      {head + "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 2\r\n\r\n{}", 415},
      {head + "x: " + std::string(7000, 'y') + "\r\nx: " + std::string(7000, 'y') + "\r\nx: " + std::string(7000, 'y') +
           "\r\n\r\n",
       400},
      {head + "Content-Length: -2\r\n\r\n{}", 400},
      {head + "Content-Length: 99999999999999999999\r\n\r\n", 413},
      {"GET / HTTP/9\r\n\r\n", 400},
      {"no HTTP at all\r\n\r\n", 400}};
  for (const auto& [request, status] : heads) EXPECT_EQ(call(request).status, status) << request.substr(0, 100);
  ask(kCompletions,
      p + R"("max_tokens": 2, "user": "u", "frequency_penalty": 0, "response_format": {"type": "text"}})");
  EXPECT_EQ(Json::parse(get("/v1/models").body)["data"][0]["id"], "demo");
}

// What clients send without meaning anything by it: each key alone, with its neutral value and with one that asks for
// something.
TEST_F(Serve, NeutralValuesAreTakenAndOthersAreNot) {
  start("--chat-template chatml");
  const std::string completion = R"({"prompt": "a", "max_tokens": 1)",
                    chat = R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1)";
  const std::tuple<const char*, std::vector<const char*>, const char*> keys[] = {
      {"presence_penalty", {"0", "0.0"}, "0.5"},
      {"repetition_penalty", {"1.0"}, "1.1"},
      {"logit_bias", {"{}", "null"}, R"({"5": 1})"},
      {"tools", {"[]", "null"}, R"([{"type": "function"}])"},
      {"tool_choice", {R"("none")", R"("auto")"}, R"("required")"},
      {"reasoning_effort", {R"("none")", "null"}, R"("high")"},
      {"verbosity", {R"("medium")"}, R"("low")"},
      {"stop_token_ids", {"[]"}, "[3]"},
      {"include_stop_str_in_output", {"false"}, "true"},
      {"modalities", {R"(["text"])"}, R"(["audio"])"},
      {"suffix", {R"("")", "null"}, R"("end")"},
  };
  for (const auto& [key, neutral, asks] : keys) {
    const auto with = [&, name = std::string(key)](const std::string& body, const std::string& value) {
      return body + ", \"" + name + "\": " + value + "}";
    };
    for (const char* value : neutral) {
      EXPECT_EQ(post(kCompletions, with(completion, value)).status, 200) << key << ": " << value;
      EXPECT_EQ(post(kChat, with(chat, value)).status, 200) << key << ": " << value;
    }
    for (const HttpAnswer& a : {post(kCompletions, with(completion, asks)), post(kChat, with(chat, asks))}) {
      EXPECT_EQ(a.status, 400) << key << ": " << asks;
      const Json error = Json::parse(a.body)["error"];
      EXPECT_EQ(error["param"], key);
      EXPECT_NE(error["message"].get<std::string>().find("leave it out, or "), std::string::npos) << error;
    }
  }
  EXPECT_EQ(Json::parse(get("/v1/models/demo").body)["id"], "demo");
  EXPECT_EQ(get("/v1/models/other").status, 404);
  EXPECT_EQ(get("/v1/models/").status, 404);
}

TEST_F(Serve, AKeyIsAskedFor) {
  start("--api-key secret");
  EXPECT_EQ(get("/v1/models").status, 401);
  EXPECT_EQ(get("/v1/models", "Authorization: Bearer secreT\r\n").status, 401);
  EXPECT_EQ(get("/v1/models", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(get("/health").status, 200);
  const ProcessResult r = run("runner serve '" + kDemo + "' --host 0.0.0.0 --port 0 --device cpu");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("--api-key"), std::string::npos) << r.err;
}

// Of a client that goes away nothing stays, whether it read a stream or waited for the whole; while it is there, those
// who come too many are told when to come again.
TEST_F(Serve, WhoGoesAwayLeavesNoPages) {
  start("--sequences 1 --queue 2 --no-prefix-cache");
  for (const std::string stream : {"true", "false"}) {
    Connection first(server->port());
    first.send(
        http_request("POST", kCompletions, R"({"prompt": "a", "n": 8, "stream": )" + stream + ", " + kLong + "}"));
    ASSERT_TRUE(comes("requests_waiting", [](int64_t n) { return n >= 2; }));  // the other continuations
    EXPECT_GT(metric("cache_pages_held"), 0);
    const HttpAnswer a = post(kCompletions, R"({"prompt": "a"})");
    EXPECT_EQ(a.status, 429) << a.body;
    EXPECT_EQ(a.headers.at("retry-after"), "1");
    first.close();
    EXPECT_TRUE(comes("cache_pages_held", [](int64_t n) { return n == 0; })) << stream;
    EXPECT_EQ(metric("requests_running") + metric("requests_waiting"), 0);
  }
  ask(kCompletions, R"({"prompt": "a", "max_tokens": 2})");
  EXPECT_TRUE(comes("cache_pages_held", [](int64_t n) { return n == 0; }));
}

TEST_F(Serve, SlowClientsAndLongRequestsAreCutOff) {
  start("--client-seconds 1 --max-seconds 0.05");
  const HttpAnswer a = post(kCompletions, R"({"prompt": "a", "n": 8, )" + kLong + "}");
  EXPECT_EQ(a.status, 504) << a.body;
  EXPECT_TRUE(comes("requests_running", [](int64_t n) { return n == 0; }));
  const Connection slow(server->port());  // a byte now and then: no single wait is long
  const std::string request = http_request("POST", kCompletions, std::string(600, ' '));
  size_t sent = 0;
  for (; sent < request.size() && !slow.ended() && slow.send(request.substr(sent, 1)); ++sent)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LT(sent, request.size());
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(Serve, ASignalFinishesWhatRuns) {
  for (const int number : {SIGINT, SIGTERM}) {
    start();
    const Connection c(server->port());
    c.send(http_request("POST", kCompletions,
                        R"({"prompt": "a", "stream": true, "max_tokens": 200, "ignore_eos": true})"));
    std::string stream = c.some();
    server->signal(number);
    stream += c.rest();
    const std::vector<std::string> events = events_of(http_answer(stream).body);
    ASSERT_GE(events.size(), 2u) << stream;
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(Json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(server->wait(), 0) << server->printed();
    EXPECT_NE(server->printed().find("closed"), std::string::npos);
    EXPECT_FALSE(Connection(server->port()).open());
  }
}

}  // namespace
}  // namespace fewbit::test
