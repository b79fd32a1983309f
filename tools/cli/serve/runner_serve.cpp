// `runner serve [MODEL]`: the model behind OpenAI's API, for harnesses and for measuring under load.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/core/stopwatch.h"
#include "src/core/strings.h"
#include "tools/cli/chat.h"
#include "tools/cli/options.h"
#include "tools/cli/runner/runner_commands.h"
#include "tools/cli/runner/speculation_args.h"
#include "tools/cli/serve/api_reply.h"
#include "tools/cli/usage.h"
#include "tools/http/http_door.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOneModel = "/v1/models/";

struct ServeArgs {
  Common common;
  std::string model, name, dtype = "bf16", kv_cache = "bf16", head = "stored", acts = "bf16", api_key, chat_template;
  HttpDoor door;
  int64_t context = 0, sequences = 16, queue = 64;
  double longest_s = 600;
  SchedulingArgs scheduling;
  SpeculationArgs speculation;
  ApiLimits limits;
};

HttpServe load_door() {
  namespace fs = std::filesystem;
  const fs::path module =
      (fs::read_symlink("/proc/self/exe").parent_path() / ".." / "lib" / "fewbit" / "fewbit_http.so")
          .lexically_normal();
  if (!fs::exists(module))
    fail(ErrorKind::usage,
         fmt::format("this build has no HTTP (no {}): install libcpp-httplib-dev and build again", module.string()));
  void* handle = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) fail(ErrorKind::usage, fmt::format("HTTP cannot be loaded: {}; install libcpp-httplib", dlerror()));
  const auto serve = reinterpret_cast<HttpServe>(dlsym(handle, "fewbit_http_serve"));
  if (!serve) fail(ErrorKind::usage, module.string() + ": of another build than this program; install both anew");
  return serve;
}

// Compares all of it, whatever differs first: the time tells nothing of the key.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned differ = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    differ |= static_cast<unsigned char>(a[i] ^ b[i % std::max<size_t>(b.size(), 1)]);
  return differ == 0;
}

class Service {
 public:
  Service(const ServeArgs& a, std::string name, ModelTexts& texts, ServingLoop& loop)
      : args_(a), name_(std::move(name)), texts_(texts), loop_(loop) {}

  void at_the_door(const HttpCall& call, HttpReply& reply) const {
    if (stop_requested()) return refuse({.status = 503, .message = "the server is closing"}, reply);
    if (args_.api_key.empty() || call.path == "/health") return;
    if (!same_secret(call.authorization, "Bearer " + args_.api_key))
      refuse({.status = 401, .message = "expected the key of --api-key: Authorization: Bearer KEY"}, reply);
  }

  void answer(const HttpCall& call, HttpReply& reply) {
    ++calls_;
    try {
      route(call, reply);
    } catch (const ApiError& e) {
      refuse(e, reply);
    } catch (const std::exception& e) {
      refuse({.status = 500, .message = e.what()}, reply);
    }
    if (reply.status >= 400) ++refused_;
  }

 private:
  static void refuse(const ApiError& e, HttpReply& reply) {
    reply.status = e.status;
    reply.body = error_json(e);
    if (e.status == 429) reply.headers.emplace_back("Retry-After", "1");
  }

  void route(const HttpCall& call, HttpReply& reply) {
    const bool chat = call.path == "/v1/chat/completions";
    const bool post = chat || call.path == "/v1/completions";
    const bool one_model = starts_with(call.path, kOneModel);
    const bool get = one_model || call.path == "/v1/models" || call.path == "/health" || call.path == "/metrics";
    if (!post && !get) throw ApiError{.status = 404, .message = "no such path: " + call.path.substr(0, 200)};
    if (call.method != (post ? "POST" : "GET") && !(get && call.method == "HEAD"))
      throw ApiError{.status = 405, .message = fmt::format("{}: expected {}", call.path, post ? "POST" : "GET")};
    if (post) return complete(call, chat, reply);
    if (call.path == "/health") {
      if (const std::string why = loop_.failure(); !why.empty()) throw ApiError{.status = 503, .message = why};
      reply.body = "{\"status\":\"ok\"}\n";
    } else if (one_model || call.path == "/v1/models") {
      const Json model = {{"id", name_}, {"object", "model"}, {"created", 0}, {"owned_by", "fewbit"}};
      if (one_model && call.path.substr(kOneModel.size()) != name_)
        throw ApiError{.status = 404, .message = fmt::format("the model is \"{}\"", name_), .parameter = "model"};
      reply.body = (one_model ? model : Json{{"object", "list"}, {"data", {model}}}).dump() + "\n";
    } else {
      reply.type = "text/plain; version=0.0.4";
      reply.body = metrics();
    }
  }

  void complete(const HttpCall& call, bool chat, HttpReply& reply) {
    const Stopwatch since;
    ApiRequest request = read_request(call.body, chat, texts_, args_.limits);
    const bool stream = request.stream;
    const auto answer = std::make_shared<ApiReply>(std::move(request), name_, texts_, loop_);
    answer->begin();
    const auto next = [answer, since, longest = args_.longest_s](std::string& piece) {
      return answer->next(piece, longest - since.seconds());
    };
    if (stream) return begin_stream(answer, next, reply);
    try {
      while (next(reply.body))
        if (!call.alive()) return answer->cancel();  // nobody reads what is sent now
    } catch (...) {
      answer->cancel();
      throw;
    }
  }

  void begin_stream(const std::shared_ptr<ApiReply>& answer, std::function<bool(std::string&)> next, HttpReply& reply) {
    reply.type = "text/event-stream";
    reply.more = [next = std::move(next)](std::string& piece) {
      try {
        return next(piece);
      } catch (const ApiError& e) {
        piece += error_event(e);
      } catch (const std::exception& e) {
        piece += error_event({.status = 500, .message = e.what()});
      }
      return false;
    };
    reply.gone = [answer] { answer->cancel(); };
  }

  std::string metrics() {
    const ServingStats s = loop_.stats();
    const SchedulerCounts& c = s.counts;
    std::string out;
    const auto add = [&](const char* name, const char* type, const char* help, double value) {
      out += fmt::format("# HELP fewbit_{0} {1}\n# TYPE fewbit_{0} {2}\nfewbit_{0} {3}\n", name, help, type, value);
    };
    const auto count = [&](const char* name, const char* help, int64_t n) {
      add(name, "counter", help, static_cast<double>(n));
    };
    const auto gauge = [&](const char* name, const char* help, int64_t n) {
      add(name, "gauge", help, static_cast<double>(n));
    };
    count("http_requests_total", "Calls that were answered.", calls_);
    count("http_refused_total", "Of these, with a status of 400 or above.", refused_);
    gauge("requests_running", "Sequences in the passes.", s.running);
    gauge("requests_waiting", "Requests that wait for a place.", s.waiting);
    gauge("cache_pages", "Pages of the cache.", s.pages);
    gauge("cache_pages_held", "Pages held by sequences and by the prefix cache.", s.pages_held);
    gauge("prefix_blocks", "Blocks of the prefix cache.", s.prefix_blocks);
    count("prefix_evicted_total", "Blocks that went from the prefix cache.", s.evicted);
    count("prompt_tokens_total", "Prompt tokens of admitted requests.", c.prompt_tokens);
    count("prefix_hit_tokens_total", "Of these, found in the prefix cache.", c.shared_tokens);
    count("generated_tokens_total", "Tokens that were chosen.", c.decoded);
    count("drafts_total", "Drafts that were checked.", c.drafts.drafts);
    count("drafted_tokens_total", "Their tokens.", c.drafts.drafted);
    count("draft_accepted_tokens_total", "Of these, accepted.", c.drafts.accepted_in_all());
    count("preemptions_total", "Requests that gave up their pages for an older one.", c.preemptions);
    count("passes_total", "Passes through the model.", c.passes);
    add("pass_seconds_total", "counter", "Time in passes.", c.engine_s);
    add("scheduling_seconds_total", "counter", "Time in planning them.", c.planning_s);
    return out;
  }

  const ServeArgs& args_;
  std::string name_;
  ModelTexts& texts_;
  ServingLoop& loop_;
  std::atomic<int64_t> calls_ = 0, refused_ = 0;
};

std::unique_ptr<ModelTexts> texts_of(const ServeArgs& a, const Checkpoint& c) {
  auto t = std::unique_ptr<ModelTexts>(new ModelTexts{.tokenizer = Tokenizer::open(c.dir)});
  try {
    t->chat = open_chat(c.dir, a.chat_template);
  } catch (const Error& e) {
    if (!a.chat_template.empty()) throw;
    t->no_chat = e.what();
  }
  return t;
}

PagedOptions engine_options(const ServeArgs& a, const Checkpoint& c) {
  const int64_t context = a.context > 0 ? a.context : std::min<int64_t>(c.spec.max_positions, 4096);
  if (context > c.spec.max_positions)
    fail(ErrorKind::usage, fmt::format("--context {}: the model has {} positions", context, c.spec.max_positions));
  const int64_t positions = a.scheduling.positions > 0 ? a.scheduling.positions : 4 * context;
  if (positions < context)
    fail(ErrorKind::usage, fmt::format("--cache-positions {}: expected --context {} at least", positions, context));
  return {.load = {.dtype = compute_dtype(a.dtype),
                   .kv_cache = kv_type_from(a.kv_cache),
                   .head = head_type_from(a.head),
                   .acts = acts_type_from(a.acts)},
          .pages = pages_for(positions),
          .sequences = a.sequences,
          .longest = context,
          .pass = a.scheduling.budget,
          .batch_invariant = a.scheduling.batch_invariant};
}

// What the door itself refuses.
std::string body_of_error(int status) {
  return error_json({.status = status,
                     .message = status == 413   ? "the body is larger than --max-body"
                                : status == 415 ? "expected a body of JSON, not packed and in one part"
                                : status == 411 ? "a body needs its Content-Length"
                                : status == 405 ? "expected GET or POST"
                                : status == 404 ? "no such path"
                                                : "the request is malformed"});
}

void run_serve(ServeArgs a) {
  check_paged_type("runner serve", kv_type_from(a.kv_cache));
  const HttpServe serve = load_door();
  const Checkpoint c = Checkpoint::open(model_or_demo(a.common, a.model));
  const PagedOptions options = engine_options(a, c);
  const std::unique_ptr<ModelTexts> texts = texts_of(a, c);
  const SpeculateOptions speculate = batch_speculation_of(a.speculation);
  check_drafts(c.spec, options.load.dtype, speculate);
  std::optional<Checkpoint> draft;
  if (!a.speculation.draft.empty()) draft = draft_model(a.speculation.draft, c, texts->tokenizer, options.longest);
  Exec ex = make_exec(a.common);
  PagedEngine engine(ex, c, options);
  for (const std::string& note : engine.notes()) say(a.common, "note: " + note + "\n");
  std::optional<DraftEngine> drafts;
  if (draft) drafts.emplace(ex, *draft, draft_options(options), c.spec.vocab);
  if (drafts)
    for (const std::string& note : drafts->notes()) say(a.common, "note: draft model: " + note + "\n");
  install_stop_handler();
  ServingLoop loop(ex, engine,
                   {.budget = a.scheduling.budget,
                    .running = a.sequences,
                    .prefix_cache = !a.scheduling.no_prefix_cache,
                    .speculate = speculate},
                   drafts ? drafts->drafter() : ngram_batch_drafter(), a.queue);
  const std::string name = a.name.empty() ? c.dir.filename().string() : a.name;
  Service service(a, name, *texts, loop);
  a.door.max_body = a.limits.max_body;
  a.limits.model = name;
  a.door.closing = [&] { return stop_requested() || !loop.failure().empty(); };
  a.door.at_the_door = [&](const HttpCall& call, HttpReply& reply) { service.at_the_door(call, reply); };
  a.door.answer = [&](const HttpCall& call, HttpReply& reply) { service.answer(call, reply); };
  a.door.error_body = body_of_error;
  a.door.open = [&](int port) {
    const Json j = {{"model", c.dir.string()},
                    {"name", name},
                    {"host", a.door.host},
                    {"port", port},
                    {"device", ex.device_name()},
                    {"acts", a.acts},
                    {"context", options.longest},
                    {"pages", options.pages},
                    {"cache_bytes", engine.cache().bytes()},
                    {"cache_bytes_per_token", engine.cache().bytes_per_position()}};
    say(a.common,
        fmt::format(
            "{} at http://{}:{}/v1 on {}: {} positions a sequence, {} pages of {} = {}, {} cache of {} B a token{}\n",
            name, a.door.host, port, ex.device_name(), options.longest, options.pages, kPagePositions,
            human_bytes(engine.cache().bytes()), a.kv_cache, engine.cache().bytes_per_position(),
            a.acts == "bf16" ? "" : ", " + a.acts + " inputs"));
    std::fflush(stdout);
    write_json(a.common, j.dump(1) + "\n");
  };
  std::string problem;
  if (!serve(a.door, problem)) fail(ErrorKind::io, fmt::format("{}:{}: {}", a.door.host, a.door.port, problem));
  loop.finish();
  loop.rethrow();
  say(a.common, "closed: what ran was finished\n");
}

}  // namespace

void add_serve_command(CLI::App& app) {
  const auto s = std::make_shared<ServeArgs>();
  CLI::App* c = app.add_subcommand("serve", "Answer OpenAI's API over HTTP: many requests at once, on the CPU");
  s->door.port = 8000;
  c->add_option("MODEL", s->model, "Checkpoint folder (left out: the embedded demo model)");
  c->add_option("--port", s->door.port, "0: any free one")->check(CLI::Range(0, 65535))->capture_default_str();
  c->add_option("--host", s->door.host, "Address to listen at; any but loopback wants --api-key")
      ->capture_default_str();
  c->add_option("--api-key", s->api_key, "What clients must send: Authorization: Bearer KEY")
      ->envname("FEWBIT_API_KEY");
  c->add_option("--name", s->name, "The model's name in answers (left out: its folder's)");
  c->add_option("--context", s->context, "Positions of a sequence (left out: the model's, 4096 at most)")
      ->check(at_least(1));
  add_scheduling(*c, s->scheduling, "four times --context");
  add_speculation(*c, s->speculation);
  c->add_option("--sequences", s->sequences, "In the passes at one time")
      ->check(number_in(1, 1024))
      ->capture_default_str();
  c->add_option("--queue", s->queue, "Requests that may wait; beyond, 429")
      ->check(number_in(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--max-tokens", s->limits.max_tokens, "New tokens of a request")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_option("--max-body", s->limits.max_body, "Bytes of a request")
      ->check(number_in(1024, 1 << 28))
      ->capture_default_str();
  c->add_option("--max-seconds", s->longest_s, "Of a request, waiting included")
      ->check(number_in(0.01, 1e6))
      ->capture_default_str();
  c->add_option("--connections", s->door.connections, "At one time; others wait")
      ->check(number_in(1, 4096))
      ->capture_default_str();
  c->add_option("--client-seconds", s->door.client_s,
                "Within which a client must have sent all of a request, or have taken a piece of its answer")
      ->check(number_in(1, 3600))
      ->capture_default_str();
  c->add_option("--chat-template", s->chat_template,
                "Instead of the model's own: llama3, chatml, mistral, gemma, or a FILE");
  c->add_option("--dtype", s->dtype, "Arithmetic: bf16 or float32")->capture_default_str();
  add_kv_cache(*c, s->kv_cache);
  add_head(*c, s->head);
  add_acts(*c, s->acts);
  add_common(*c, s->common);
  c->callback([s] {
    const bool loopback = s->door.host == "localhost" || s->door.host == "::1" || starts_with(s->door.host, "127.");
    if (!loopback && s->api_key.empty())
      fail(ErrorKind::usage, fmt::format("--host {}: others can reach it; give --api-key KEY too", s->door.host));
    run_serve(*s);
  });
}

}  // namespace fewbit::cli
