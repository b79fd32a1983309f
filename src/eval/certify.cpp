#include "src/eval/certify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/core/text/with_error.h"
#include "src/text/corpus.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kContext = 256, kLeastWindows = 4, kStepWindows = 4, kWorst = 3, kBefore = 16;

// Windows of up to kContext tokens, shorter where the text has not four of them.
Windows windows_of(const Tokenizer& tokenizer, const CertifyText& t, int64_t positions) {
  std::vector<int32_t> ids = tokenizer.encode(t.text, Special::none);
  if (const auto bos = tokenizer.bos()) ids.insert(ids.begin(), *bos);
  const int64_t length = std::min({kContext, positions, static_cast<int64_t>(ids.size()) / kLeastWindows});
  return cut_windows(std::move(ids), std::max<int64_t>(2, length), 0, t.domain);
}

struct Pair {
  Exec& ex;
  const CertifyJob& job;
  const Tokenizer& tokenizer;
  Runner &base, &model;
};

CertifiedDomain compared(const Pair& p, Runner& model, const std::string& name, const ScoredWindows& w) {
  const DivergenceResult r = divergence(p.ex, logits_from(p.ex, p.base, w), logits_from(p.ex, model, w), w,
                                        {.batch_tokens = p.job.batch_tokens, .worst = kWorst});
  CertifiedDomain d{.name = name,
                    .context = w.windows.length,
                    .windows = r.windows,
                    .tokens = r.tokens,
                    .kl = interval_of(r.kl.mean, r.kl.stderr_),
                    .top1 = interval_of(r.top1, r.top1_stderr),
                    .kl_stderr = r.kl.stderr_};
  const auto text = [&](std::span<const int32_t> ids) { return p.tokenizer.decode(ids); };
  for (const WorstToken& t : r.worst) {
    const int64_t begin = std::max<int64_t>(0, t.position - kBefore), at = t.window * w.windows.length;
    d.worst.push_back({text(std::span(w.windows.ids)
                                .subspan(static_cast<size_t>(at + begin), static_cast<size_t>(t.position - begin))),
                       text({&t.token, 1}), text({&t.base_top, 1}), text({&t.model_top, 1}), t.kl, t.base_p, t.p});
  }
  return d;
}

// Windows twice as long from step to step, up to the models' positions and the text; the last quarter is scored.
std::vector<CertifiedDomain> long_context(const Pair& p, const std::vector<CertifyText>& texts, int64_t positions) {
  std::string all;
  for (const CertifyText& t : texts) all += t.text + "\n";
  std::vector<int32_t> ids = p.tokenizer.encode(all, Special::none);
  if (const auto bos = p.tokenizer.bos()) ids.insert(ids.begin(), *bos);
  std::vector<CertifiedDomain> steps;
  const int64_t most = std::min(positions, static_cast<int64_t>(ids.size()));
  for (int64_t length = 2 * kContext; length <= most; length *= 2) {
    ScoredWindows w(cut_windows(ids, length, kStepWindows, "long context"));
    w.first.assign(static_cast<size_t>(w.windows.count), 3 * length / 4);
    steps.push_back(compared(p, p.model, fmt::format("context of {}", length), w));
    p.job.progress("longer windows", static_cast<double>(length) / static_cast<double>(most));
  }
  return steps;
}

void try_caches(const Pair& p, const CertifyText& text, int64_t positions, Certificate& out) {
  const ScoredWindows w(windows_of(p.tokenizer, text, positions));
  constexpr const char* kNames[] = {"fp8", "int8", "int4"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    const char* name = kNames[i];
    p.job.progress("caches", static_cast<double>(i) / static_cast<double>(std::size(kNames)));
    LoadOptions load = p.job.load;
    load.kv_cache = kv_type_from(name);
    try {
      Runner cached(p.ex, *p.job.model, load);
      out.caches.push_back(compared(p, cached, fmt::format("{} cache", name), w));
    } catch (const Error& e) {
      out.refused.push_back(fmt::format("{} cache: {}", name, e.what()));
    }
  }
}

// One line of what is beyond a limit, with the place where it is worst.
std::string beyond(const CertifiedDomain& d, double limit) {
  std::string s = fmt::format("{}: KL {}, up to {:.5f}, beyond {:.5f}", d.name, with_error(d.kl.value, d.kl_stderr, 5),
                              d.kl.high, limit);
  // On one line, whatever the text is.
  const auto flat = [](std::string text) {
    for (char& ch : text)
      if (static_cast<unsigned char>(ch) < ' ') ch = ' ';
    return text;
  };
  if (!d.worst.empty())
    s += fmt::format("; worst where \"{}\" follows \"…{}\" (KL {:.3f})", flat(d.worst[0].token),
                     flat(d.worst[0].before), d.worst[0].kl);
  return s;
}

void judge(Certificate& c) {
  double tokens = 0, kl = 0, kl_error = 0, top1 = 0;
  const CertifiedDomain* worst = nullptr;
  for (const CertifiedDomain& d : c.domains) {
    const auto n = static_cast<double>(d.tokens);
    tokens += n, kl += n * d.kl.value, top1 += n * d.top1.value;
    kl_error += std::isnan(d.kl_stderr) ? 0 : std::pow(n * d.kl_stderr, 2);
    if (!worst || d.kl.value > worst->kl.value) worst = &d;
  }
  c.kl = interval_of(kl / tokens, std::sqrt(kl_error) / tokens);
  c.top1 = interval_of(top1 / tokens, std::sqrt(top1 / tokens * (1 - top1 / tokens) / tokens));
  if (c.limits.mean > 0 && c.kl.high > c.limits.mean)
    c.failures.push_back(
        fmt::format("mean over all domains: KL {:.5f}, up to {:.5f}, beyond {:.5f}; the farthest is {}", c.kl.value,
                    c.kl.high, c.limits.mean, worst ? worst->name : ""));
  if (c.limits.domain <= 0) return;
  for (const auto* group : {&c.domains, &c.steps})
    for (const CertifiedDomain& d : *group)
      if (d.kl.high > c.limits.domain) c.failures.push_back(beyond(d, c.limits.domain));
}

}  // namespace

Interval interval_of(double mean, double error) {
  const double reach = std::isnan(error) ? 0 : 1.96 * error;
  return {mean, mean - reach, mean + reach};
}

std::vector<CertifyText> certify_texts() {
  const fs::path all = builtin_data_dir() / "evaluation";
  const auto joined = [&](std::initializer_list<const char*> files) {
    std::string text;
    for (const char* f : files) text += read_text(all / f) + "\n";
    return text;
  };
  return {{"prose", joined({"english/story.txt", "english/essays.txt"})},
          {"documentation", joined({"english/handbook.txt"})},
          {"code", joined({"multilingual/code.txt", "multilingual/data.txt"})},
          {"mathematics", joined({"multilingual/math.txt"})},
          {"tool calls", joined({"domains/tool_calls.txt"})},
          {"reasoning and its end", joined({"domains/reasoning.txt"})},
          {"languages", joined({"multilingual/languages.txt"})},
          {"emoji and scripts", joined({"domains/emoji_and_scripts.txt"})}};
}

Certificate certify(Exec& ex, const CertifyJob& job) {
  if (job.base->spec.vocab != job.model->spec.vocab)
    fail(ErrorKind::usage,
         fmt::format("{} has a vocabulary of {} and {} one of {}; they cannot be compared", job.model->dir.string(),
                     job.model->spec.vocab, job.base->dir.string(), job.base->spec.vocab));
  const std::vector<CertifyText> texts = certify_texts();
  const std::vector<TaskItem> items = read_tasks(job.tasks);
  const Tokenizer tokenizer = Tokenizer::open(job.base->dir);
  const int64_t positions = std::min(job.base->spec.max_positions, job.model->spec.max_positions);
  Runner base(ex, *job.base, {.dtype = job.load.dtype}), model(ex, *job.model, job.load);
  const Pair pair{ex, job, tokenizer, base, model};
  Certificate c;
  c.base = job.base->dir.string(), c.model = job.model->dir.string(), c.limits = job.limits;
  c.device = ex.device_name(), c.dtype = name_of(job.load.dtype);
  for (const CertifyText& t : texts) {
    job.progress(t.domain, static_cast<double>(c.domains.size()) / static_cast<double>(texts.size()));
    c.domains.push_back(compared(pair, model, t.domain, windows_of(tokenizer, t, positions)));
  }
  c.steps = long_context(pair, texts, positions);
  try_caches(pair, texts.front(), positions, c);
  job.progress("tasks", 0);
  c.items = static_cast<int64_t>(items.size());
  c.flips = flips(items, answer_tasks(base, tokenizer, items, {.batch_tokens = job.batch_tokens}),
                  answer_tasks(model, tokenizer, items, {.batch_tokens = job.batch_tokens}), true);
  judge(c);
  return c;
}

}  // namespace fewbit
