// One safetensors file: 8 bytes of header length H (little-endian), H bytes of JSON, then the data without
// holes. The header is read with a SAX parser, because a tree parser keeps one of two equal keys and says
// nothing.
#include "formats/containers/safetensors_file.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/error.h"

namespace fewbit::safetensors {
namespace {

using nlohmann::json;

// Types of the format that have no counterpart in DType.
constexpr std::string_view kForeignTypes[] = {"C64", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F6_E2M3", "F6_E3M2"};

// Ascending order of the reference writer; files are laid out in the descending one.
constexpr DType kOrder[] = {DType::boolean, DType::u8,  DType::i8,  DType::f8_e5m2, DType::f8_e4m3, DType::f8_e8m0,
                            DType::i16,     DType::u16, DType::f16, DType::bf16,    DType::i32,     DType::u32,
                            DType::f32,     DType::f64, DType::i64, DType::u64};

int rank_of(DType d) { return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), d) - kOrder); }

// Receives the header's events. A false return stops the parser; `problem` then says why.
class HeaderEvents final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderEvents(int64_t data_bytes) : data_bytes_(data_bytes) {}

  Header header;
  std::string problem;
  bool foreign = false;  // the problem is a valid thing that we do not implement

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t v) override { return unexpected(std::to_string(v)); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected("the number " + printable(text));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t v) override {
    if (at_ != At::array) return unexpected(std::to_string(v));
    if (v > static_cast<uint64_t>(INT64_MAX))
      return refuse(tensor() + field_ + " value " + std::to_string(v) + " overflows");
    if (numbers_.size() > 32) return refuse(tensor() + field_ + " has more than 32 entries");
    numbers_.push_back(static_cast<int64_t>(v));
    return true;
  }
  bool string(string_t& v) override {
    if (at_ == At::metadata) {
      header.metadata[field_] = v;
      return true;
    }
    if (at_ != At::tensor || field_ != "dtype") return unexpected("the string \"" + printable(v) + '"');
    dtype_ = v;
    return true;
  }
  bool start_object(std::size_t) override {
    if (at_ == At::start) return at_ = At::top, true;
    if (at_ != At::top) return unexpected("an object");
    at_ = name_ == "__metadata__" ? At::metadata : At::tensor;
    field_.clear();
    seen_.clear();
    return true;
  }
  bool key(string_t& v) override {
    if (at_ == At::top) {
      name_ = v;
      if (!names_.insert(v).second)
        return refuse("duplicate key '" + printable(v) + "' in the header, expected each once");
      return true;
    }
    field_ = v;
    if (!seen_.insert(v).second) {
      return refuse((at_ == At::metadata ? "__metadata__: " : tensor()) + "duplicate key '" + printable(v) + "'");
    }
    if (at_ == At::tensor && v != "dtype" && v != "shape" && v != "data_offsets")
      return refuse(tensor() + "unknown key '" + printable(v) + "', expected dtype, shape, data_offsets");
    return true;
  }
  bool end_object() override {
    const At was = at_;
    at_ = was == At::top ? At::end : At::top;
    return was != At::tensor || take_tensor();
  }
  bool start_array(std::size_t) override {
    if (at_ != At::tensor || field_ == "dtype") return unexpected("an array");
    at_ = At::array;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    at_ = At::tensor;
    (field_ == "shape" ? shape_ : offsets_) = numbers_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    std::string what = e.what();
    for (char& c : what)
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
    return refuse("header is not UTF-8 JSON at byte " + std::to_string(position) + ": " + printable(what));
  }

 private:
  enum class At { start, top, metadata, tensor, array, end };

  std::string tensor() const { return "tensor '" + printable(name_) + "': "; }
  bool refuse(const std::string& what) {
    if (problem.empty()) problem = what;
    return false;
  }
  bool unexpected(const std::string& found) {
    switch (at_) {
      case At::start:
      case At::end:
        return refuse("header: expected a JSON object, found " + found);
      case At::top:
        return refuse(std::string("'") + printable(name_) + "': expected an object, found " + found);
      case At::metadata:
        return refuse("__metadata__: '" + printable(field_) + "': expected a string, found " + found);
      case At::array:
        return refuse(tensor() + field_ + ": expected non-negative integers, found " + found);
      case At::tensor:
        break;
    }
    return refuse(tensor() + field_ + ": expected " +
                  (field_ == "dtype" ? "a string" : "an array of non-negative integers") + ", found " + found);
  }

  bool take_tensor() {
    for (const char* needed : {"dtype", "shape", "data_offsets"})
      if (!seen_.count(needed)) return refuse(tensor() + "key '" + needed + "' is missing");
    const auto dtype = dtype_from_safetensors(dtype_);
    if (!dtype) {
      foreign = std::find(std::begin(kForeignTypes), std::end(kForeignTypes), dtype_) != std::end(kForeignTypes);
      return refuse(tensor() + (foreign ? "unsupported dtype \"" : "unknown dtype \"") + printable(dtype_) + '"');
    }
    if (shape_.size() > static_cast<size_t>(Shape::kMaxRank)) {
      foreign = true;
      return refuse(tensor() + "shape has " + std::to_string(shape_.size()) + " dimensions, at most " +
                    std::to_string(Shape::kMaxRank) + " are supported");
    }
    int64_t bytes = bytes_of(*dtype);
    for (int64_t d : shape_)
      if (__builtin_mul_overflow(bytes, d, &bytes)) return refuse(tensor() + "shape overflows 64 bits");
    if (offsets_.size() != 2) {
      return refuse(tensor() + "data_offsets: expected 2 integers, found " + std::to_string(offsets_.size()));
    }
    const auto [begin, end] = std::pair(offsets_[0], offsets_[1]);
    if (end < begin || end > data_bytes_) {
      return refuse(tensor() + "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) +
                    "] lie outside the data of " + std::to_string(data_bytes_) +
                    " bytes; was the file cut off? fetch it again");
    }
    const Shape shape{std::span<const int64_t>(shape_)};
    if (end - begin != bytes) {
      return refuse(tensor() + dtype_ + " " + shape.str() + ": wrong size, expected " + std::to_string(bytes) +
                    " bytes, found " + std::to_string(end - begin));
    }
    header.tensors.push_back({name_, *dtype, shape, 0, begin, bytes});
    return true;
  }

  int64_t data_bytes_;
  At at_ = At::start;
  std::string name_, field_, dtype_;
  std::set<std::string> names_, seen_;
  std::vector<int64_t> numbers_, shape_, offsets_;
};

// The data must be covered from 0 to its end, each byte once.
void check_coverage(const Header& header, int64_t data_bytes, const std::string& where) {
  std::vector<const TensorInfo*> order;
  order.reserve(header.tensors.size());
  for (const TensorInfo& t : header.tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->bytes) < std::pair(b->begin, b->bytes);
  });
  int64_t at = 0;
  for (const TensorInfo* t : order) {
    if (t->begin != at) {
      fail(ErrorKind::checkpoint, where + ": tensor '" + printable(t->name) +
                                      "': " + (t->begin < at ? "overlaps its predecessor" : "a hole lies before it") +
                                      ", expected data_offsets to begin at " + std::to_string(at) + ", found " +
                                      std::to_string(t->begin));
    }
    at += t->bytes;
  }
  if (at != data_bytes) {
    fail(ErrorKind::checkpoint, where + ": " + std::to_string(data_bytes - at) + " trailing bytes, expected " +
                                    std::to_string(at) + " bytes of data, found " + std::to_string(data_bytes));
  }
}

}  // namespace

std::string printable(std::string_view text) {
  static const char* digits = "0123456789abcdef";
  std::string out;
  for (char ch : text) {
    if (out.size() >= 200) return out + "...";
    const auto c = static_cast<unsigned char>(ch);
    if (c >= 0x20 && c != 0x7f) {
      out += ch;
    } else {
      out += "\\x";
      out += digits[c >> 4];
      out += digits[c & 15];
    }
  }
  return out;
}

int64_t head_bytes(const MappedFile& file) {
  if (file.size() < 8) return 8;
  uint64_t length = 0;
  std::memcpy(&length, file.at(0, 8), 8);
  file.forget(0, 8);
  return length > kMaxHeader ? 8 : 8 + static_cast<int64_t>(length);
}

Header parse(std::span<const uint8_t> file, const std::string& where) {
  return parse(file, static_cast<int64_t>(file.size()), where);
}

Header parse(std::span<const uint8_t> head, int64_t file_bytes, const std::string& where) {
  if (file_bytes < 8) {
    fail(ErrorKind::checkpoint,
         where + ": too short for a safetensors file, expected at least 8 bytes, found " + std::to_string(file_bytes));
  }
  uint64_t length = 0;
  std::memcpy(&length, head.data(), 8);
  if (length > kMaxHeader) {
    fail(ErrorKind::checkpoint, where + ": header length " + std::to_string(length) +
                                    " exceeds the format's limit of " + std::to_string(kMaxHeader) +
                                    " bytes; is this a safetensors file?");
  }
  if (static_cast<int64_t>(length) > file_bytes - 8) {
    fail(ErrorKind::checkpoint, where + ": header length " + std::to_string(length) + " exceeds the file of " +
                                    std::to_string(file_bytes) + " bytes; the file is cut short");
  }
  const auto text = head.subspan(8, length);
  // The JSON parser would silently skip a byte order mark.
  if (text.size() >= 3 && text[0] == 0xef)
    fail(ErrorKind::checkpoint, where + ": header is not UTF-8 JSON: it begins with a byte order mark");
  const int64_t data_begin = 8 + static_cast<int64_t>(length);
  const int64_t data_bytes = file_bytes - data_begin;
  HeaderEvents events(data_bytes);
  if (!json::sax_parse(text.begin(), text.end(), &events))
    fail(events.foreign ? ErrorKind::unsupported : ErrorKind::checkpoint, where + ": " + events.problem);
  check_coverage(events.header, data_bytes, where);
  for (TensorInfo& t : events.header.tensors) t.begin += data_begin;
  return std::move(events.header);
}

bool written_before(const TensorInfo& a, const TensorInfo& b) {
  if (a.dtype != b.dtype) return rank_of(a.dtype) > rank_of(b.dtype);
  return a.name < b.name;
}

void put_in_written_order(std::vector<const TensorInfo*>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](auto* a, auto* b) { return written_before(*a, *b); });
}

std::string serialize(const std::vector<const TensorInfo*>& tensors) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  int64_t at = 0;
  for (const TensorInfo* t : tensors) {
    std::string dims = t->shape.str();  // "[2, 3]"
    std::erase(dims, ' ');
    text += ',';
    text += json(t->name).dump();
    text += R"(:{"dtype":")";
    text += info(t->dtype).safetensors;
    text += R"(","shape":)" + dims + R"(,"data_offsets":[)";
    text += std::to_string(at) + ',' + std::to_string(at + t->bytes) + "]}";
    at += t->bytes;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeader)
    fail(ErrorKind::unsupported, "a header of " + std::to_string(text.size()) + " bytes exceeds the format's limit");
  const uint64_t length = text.size();
  std::string word(8, '\0');
  std::memcpy(word.data(), &length, 8);
  return word + text;
}

}  // namespace fewbit::safetensors
