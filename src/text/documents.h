#pragma once
// Documents: a data file as texts. A text file is one document; every line of a .jsonl file is one: its
// `text`, or its chat `messages` rendered by a chat template.
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/chat_template.h"
#include "src/text/files/text_file.h"
#include "src/text/tokenizer.h"

namespace fewbit {

struct Documents {
  std::vector<std::string> texts{};
  bool chat = false;   // the texts hold their special tokens, BOS included
  bool lines = false;  // from a .jsonl file
};

// One line of a .jsonl file as a text.
struct Record {
  std::string text;
  bool chat = false;
};
// Where a record may have its text besides `text` and `messages`.
struct RecordKeys {
  std::string field{};  // under this key alone: a text or a list of messages
  bool pairs = false;   // a prompt with its completion, by their usual names
};
// Error{checkpoint} that begins with `where`.
Record read_record(std::string_view line, const std::string& where, const std::function<const ChatTemplate&()>& chat,
                   const RecordKeys& = {});

// `chat` is asked for the template at the first line with messages. Error{io}; Error{checkpoint} on an empty
// file and, with its number, on a line that is no object, lacks both keys, or mixes them with the lines
// before.
Documents read_documents(const std::filesystem::path& path, const std::function<const ChatTemplate&()>& chat);

// A file of any size, some MiB of it at a time: whole lines of a .jsonl file; of a text file pieces that begin at a
// document or a line (TextFile::start_from). `take` says whether to go on. Errors as above, at the line that has them.
void read_in_parts(const TextFile&, const std::function<const ChatTemplate&()>& chat,
                   const std::function<bool(const Documents&)>& take);

// The rows of a data set as the `gptq` protocol joins them, "\n\n" between two: the lines of a text file with
// their newlines, a blank line being an empty row; the documents of a .jsonl file.
std::string joined_rows(const Documents&);

// Every document tokenized by itself with BOS in front (where the tokenizer has one and the document is no
// chat), one after the other.
std::vector<int32_t> tokenize(const Tokenizer&, const Documents&);

}  // namespace fewbit
