// Decoders.
#include "src/text/decoder.h"

#include <charconv>

#include "src/core/error.h"
#include "src/text/byte_alphabet.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace {

using Tokens = std::vector<std::string>;

std::string concatenate(const Tokens& tokens) {
  std::string out;
  for (const std::string& t : tokens) out += t;
  return out;
}

// A token with a character outside of the alphabet (an added one) stands for its own bytes.
std::string bytes_of_token(const std::string& token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const uint32_t c = next_code(token, i);
    if (c >= kByteAlphabetEnd || kByteAlphabet.byte_of[c] < 0) return token;
    bytes += static_cast<char>(kByteAlphabet.byte_of[c]);
  }
  return bytes;
}

Tokens run_step(const BytesFromCharacters&, Tokens tokens) {
  for (std::string& t : tokens) t = bytes_of_token(t);
  return {to_utf8(concatenate(tokens))};
}

// The byte of "<0xHH>", or -1.
int byte_of_token(const std::string& t) {
  if (t.size() != 6 || t.compare(0, 3, "<0x") != 0 || t[5] != '>') return -1;
  int value = -1;
  const auto r = std::from_chars(t.data() + 3, t.data() + 5, value, 16);
  return r.ec == std::errc() && r.ptr == t.data() + 5 && value >= 0 ? value : -1;
}

// A run of bytes that is not well-formed UTF-8 as a whole gives one U+FFFD per byte.
Tokens run_step(const BytesFromTokens&, const Tokens& tokens) {
  Tokens out;
  std::string run;
  const auto flush = [&] {
    if (is_utf8(run)) {
      out.push_back(run);
    } else {
      out.emplace_back();
      for (size_t i = 0; i < run.size(); ++i) append_code(out.back(), kReplacementCharacter);
    }
    run.clear();
  };
  for (const std::string& t : tokens) {
    if (const int byte = byte_of_token(t); byte >= 0) {
      run += static_cast<char>(byte);
      continue;
    }
    if (!run.empty()) flush();
    out.push_back(t);
  }
  if (!run.empty()) flush();
  return out;
}

Tokens run_step(const FuseTokens&, const Tokens& tokens) { return {concatenate(tokens)}; }

Tokens run_step(const StripToken& strip, Tokens tokens) {
  const size_t n = strip.content.size();
  for (std::string& t : tokens) {
    size_t begin = 0, end = t.size();
    for (int64_t k = 0; k < strip.start && end - begin >= n && t.compare(begin, n, strip.content) == 0; ++k) begin += n;
    for (int64_t k = 0; k < strip.stop && end - begin >= n && t.compare(end - n, n, strip.content) == 0; ++k) end -= n;
    t = t.substr(begin, end - begin);
  }
  return tokens;
}

Tokens run_step(const ReplaceText& replace, Tokens tokens) {
  for (std::string& t : tokens) t = replace_all(replace, t, grown_limit(t.size()));
  return tokens;
}

// Marks become spaces; those of the first token were put there by the encoder and vanish.
Tokens run_step(const MarkSpaces& marks, Tokens tokens) {
  const ReplaceText to_space{Pattern::literal(marks.mark), " "}, to_nothing{Pattern::literal(marks.mark), ""};
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = replace_all(i == 0 && marks.scheme != PrependScheme::never ? to_nothing : to_space, tokens[i],
                            grown_limit(tokens[i].size()));
  return tokens;
}

// What the reference's clean-up replaces, in its order.
constexpr std::pair<std::string_view, std::string_view> kCleaned[] = {
    {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
    {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
};

Tokens run_step(const JoinWordPieces& join, Tokens tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string& t = tokens[i];
    if (i > 0) t = t.starts_with(join.prefix) ? t.substr(join.prefix.size()) : ' ' + t;
    if (!join.cleanup) continue;
    for (const auto& [from, to] : kCleaned)
      for (size_t at = t.find(from); at != std::string::npos; at = t.find(from, at + to.size()))
        t.replace(at, from.size(), to);
  }
  return tokens;
}

size_t bytes_of(const Tokens& tokens) {
  size_t n = 0;
  for (const std::string& t : tokens) n += t.size();
  return n;
}

}  // namespace

std::string join_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens) {
  const size_t limit = grown_limit(bytes_of(tokens));
  for (const DecoderStep& step : steps) {
    tokens = std::visit([&](const auto& s) { return run_step(s, std::move(tokens)); }, step);
    if (const size_t bytes = bytes_of(tokens); bytes > limit)
      fail(ErrorKind::unsupported, "tokenizer: a step of the decoder makes " + std::to_string(bytes) +
                                       " bytes; supported here: " + std::to_string(limit) + " at most");
  }
  return concatenate(tokens);
}

}  // namespace fewbit
