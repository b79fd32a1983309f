#pragma once
// What --calib names, as texts: files, folders and patterns, packed or not, texts, chats and other records.
#include <functional>
#include <string>
#include <vector>

#include "src/text/calibration/draw.h"
#include "src/text/chat_template.h"

namespace fewbit {

// "a.jsonl:0.7": its weight among several, 1 where none is given. A name that is a file as it stands has no weight.
struct CalibSource {
  std::string name;
  double weight = 1;
};
CalibSource calib_source(const std::string& text);  // Error{usage} for a weight that is not above 0

// The text files that a source names: itself, those of a folder and its folders, or those that a pattern with * or ?
// matches, in name order. Error{usage} where there is none, and for Parquet, with the command that makes JSONL of it.
std::vector<std::filesystem::path> calib_files(const std::string& name);

struct CalibReading {
  std::string field{};  // of a record; "" = `text`, `messages`, or `prompt` with `completion`
  std::function<const ChatTemplate&()> chat;
};
// A file as a text to draw from, at most `room` bytes of it in memory: a plain text above that stays on disk (windows
// are drawn by offsets), of records and of packed files no more than that is read, and the name says so. Records are
// the lines of a .jsonl file, each a document: its field, its `messages` with `tools` through the template, or `prompt`
// (or `instruction`, `question`) and `completion` (`response`, `output`, `answer`), a newline between them.
// Error{checkpoint} with the line.
CalibPart calib_text(const std::filesystem::path&, int64_t room, const CalibReading&);

}  // namespace fewbit
