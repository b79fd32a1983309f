// Reading text and JSONL files.
#include "src/text/documents.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/text/corpus.h"
#include "src/text/json_problem.h"

namespace fewbit {
namespace {

using Json = nlohmann::ordered_json;  // a template may write a message out as it stands
using ChatSource = std::function<const ChatTemplate&()>;

// A part of a large file: so many pieces of a text, tokenized side by side at some 13 bytes a byte.
constexpr int64_t kPieceBytes = int64_t{1} << 20, kPieces = 4, kPieceReach = int64_t{64} << 10;

std::string_view blank_trimmed(std::string_view s) {
  const size_t end = s.find_last_not_of(" \t\r\n");
  return end == std::string_view::npos ? std::string_view() : s.substr(0, end + 1);
}

// `content` is a text, or a list of parts {"type": "text", "text": …}; a message that calls tools may be without.
void check_message(const Json& m, const std::string& where) {
  if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
    fail(ErrorKind::checkpoint, where + ": a message without `role`");
  const Json content = m.value("content", Json());
  if (content.is_string() || (content.is_null() && m.contains("tool_calls"))) return;
  if (!content.is_array()) fail(ErrorKind::checkpoint, where + ": a message without `content`");
  for (const Json& part : content)
    if (!part.is_object() || part.value("type", "") != "text" || !part.contains("text") || !part["text"].is_string())
      fail(ErrorKind::unsupported, where + ": messages: only parts of type \"text\" are understood");
}

// The line's `messages`, with its `tools`, `documents` and `chat_template_kwargs` where it has them.
std::string rendered(const Json& line, const ChatTemplate& chat, const std::string& where) {
  for (const Json& m : line["messages"]) check_message(m, where);
  const auto part = [&](const char* key) {
    return line.contains(key) && !line[key].is_null() ? line[key].dump() : std::string();
  };
  return chat.render({part("messages"), part("tools"), part("documents"), part("chat_template_kwargs")});
}

// The first of several keys that holds a text; "" where none does.
std::string text_under(const Json& line, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (line.contains(key) && line[key].is_string()) return line[key];
  return "";
}

// What stands under the key that is asked for: a text, or a list of messages.
Record record_under(const std::string& field, Json line, const std::string& where, const ChatSource& chat) {
  if (!line.contains(field)) fail(ErrorKind::checkpoint, fmt::format("{}: has no `{}` (--calib-field)", where, field));
  if (line[field].is_string()) return {line[field], false};
  if (!line[field].is_array())
    fail(ErrorKind::checkpoint, fmt::format("{}: `{}` is neither a text nor a list of messages", where, field));
  line["messages"] = line[field];
  return {rendered(line, chat(), where), true};
}

Record record_of(const Json& j, const std::string& where, const ChatSource& chat, const RecordKeys& keys) {
  if (!j.is_object()) fail(ErrorKind::checkpoint, where + ": is not a JSON object");
  if (!keys.field.empty()) return record_under(keys.field, j, where, chat);
  if (j.contains("messages") && j["messages"].is_array()) return {rendered(j, chat(), where), true};
  if (!keys.pairs) {
    if (j.contains("text") && j["text"].is_string()) return {j["text"], false};
    fail(ErrorKind::checkpoint, where + ": has neither `text` nor `messages`");
  }
  if (std::string text = text_under(j, {"text"}); !text.empty()) return {text, false};
  const std::string prompt = text_under(j, {"prompt", "instruction", "question"});
  const std::string completion = text_under(j, {"completion", "response", "output", "answer"});
  if (!prompt.empty() && !completion.empty()) return {prompt + "\n" + completion, false};
  fail(ErrorKind::checkpoint, where +
                                  ": has neither `text` nor `messages`, nor `prompt` with `completion`; name the key "
                                  "that holds the text with --calib-field");
}

void add_line(std::string_view line, const std::string& where, const ChatSource& chat, Documents& out) {
  Record r = read_record(line, where, chat);
  if (!out.texts.empty() && out.chat != r.chat)
    fail(ErrorKind::checkpoint, where + ": `text` and `messages` are mixed in one file");
  out.chat = r.chat;
  out.texts.push_back(std::move(r.text));
}

void read_lines_in_parts(const TextFile& file, const ChatSource& chat,
                         const std::function<bool(const Documents&)>& take) {
  int64_t number = 0, in_all = 0;
  std::string left;  // of the line that the last reading cut
  bool chats = false;
  for (int64_t at = 0; at < file.size();) {
    Documents part;
    part.lines = true;
    std::string text = left + file.read(at, kPieceBytes);
    at += static_cast<int64_t>(text.size() - left.size());
    const size_t newline = at < file.size() ? text.rfind('\n') : text.size();
    left = newline == std::string::npos ? text : text.substr(std::min(newline + 1, text.size()));
    if (static_cast<int64_t>(left.size()) > kWholeText)
      fail(ErrorKind::checkpoint,
           fmt::format("{}: line {} is longer than {} MiB", file.path().string(), number + 1, kWholeText >> 20));
    if (newline == std::string::npos) continue;
    for (const std::string& line : split(std::string_view(text).substr(0, newline), '\n')) {
      const std::string where = fmt::format("{}: line {}", file.path().string(), ++number);
      if (!blank_trimmed(line).empty()) add_line(line, where, chat, part);
    }
    if (part.texts.empty()) continue;
    if (in_all > 0 && part.chat != chats)
      fail(ErrorKind::checkpoint,
           fmt::format("{}: `text` and `messages` are mixed before line {}", file.path().string(), number + 1));
    chats = part.chat;
    in_all += static_cast<int64_t>(part.texts.size());
    if (!take(part)) return;
  }
  if (in_all == 0) fail(ErrorKind::checkpoint, file.path().string() + ": holds no document");
}

}  // namespace

Record read_record(std::string_view line, const std::string& where, const ChatSource& chat, const RecordKeys& keys) {
  if (const std::string problem = json_problem(line); !problem.empty())
    fail(ErrorKind::checkpoint, where + ": " + problem);
  const Json j = parse_ordered_json(line, where, kRecordJson);
  Record r;
  take_apart(where, [&] { r = record_of(j, where, chat, keys); });
  return r;
}

void read_in_parts(const TextFile& file, const ChatSource& chat, const std::function<bool(const Documents&)>& take) {
  if (file.path().extension() == ".jsonl") return read_lines_in_parts(file, chat, take);
  for (int64_t at = 0; at < file.size();) {
    Documents part;
    for (int64_t piece = 0; piece < kPieces && at < file.size(); ++piece) {
      const int64_t end = file.start_from(at + kPieceBytes, kPieceReach);
      part.texts.push_back(file.read(at, end - at));
      at = end;
    }
    if (!take(part)) return;
  }
}

Documents read_documents(const std::filesystem::path& path, const ChatSource& chat) {
  const std::string content = read_text(path);
  if (path.extension() != ".jsonl") return {{content}};
  Documents out;
  out.lines = true;
  const std::vector<std::string> lines = split(content, '\n');
  for (size_t i = 0; i < lines.size(); ++i)
    if (!blank_trimmed(lines[i]).empty())
      add_line(lines[i], fmt::format("{}: line {}", path.string(), i + 1), chat, out);
  if (out.texts.empty()) fail(ErrorKind::checkpoint, path.string() + ": holds no document");
  return out;
}

std::string joined_rows(const Documents& d) {
  if (d.lines) return join(d.texts, "\n\n");
  std::string out;
  for (const std::string& text : d.texts) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t newline = text.find('\n', begin), end = newline == std::string::npos ? text.size() : newline + 1;
      const std::string_view row = std::string_view(text).substr(begin, end - begin);
      if (begin > 0) out += "\n\n";
      if (!blank_trimmed(row).empty()) out += row;
      begin = end;
    }
  }
  return out;
}

std::vector<int32_t> tokenize(const Tokenizer& tokenizer, const Documents& d) {
  std::vector<std::vector<int32_t>> parts(d.texts.size());
  parallel_for(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      // What a template puts behind a text is left out.
      parts[i] = tokenizer.encode(d.texts[i], Special::none);
      if (const auto bos = tokenizer.bos(); bos && !d.chat) parts[i].insert(parts[i].begin(), *bos);
    }
  });
  std::vector<int32_t> ids;
  for (const std::vector<int32_t>& p : parts) ids.insert(ids.end(), p.begin(), p.end());
  return ids;
}

}  // namespace fewbit
