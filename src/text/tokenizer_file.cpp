// Reading tokenizer.json: what stands around the text, and the parts that the readers of src/text/json take.
#include "src/text/tokenizer_file.h"

#include "src/text/json/read_model.h"
#include "src/text/json/read_steps.h"

namespace fewbit {
namespace {

// The ids around the text, read from the template for a single text: [special …, A, special …].
void read_template(const JsonNode& n, TokenizerFile& out) {
  std::vector<int32_t> before, after;
  bool seen_text = false;
  for (const JsonNode& piece : n.at("single").items()) {
    if (piece.has("Sequence")) {
      const JsonNode id = piece.at("Sequence").at("id");
      if (id.text() != "A" || seen_text) id.refuse("the text A, once");
      seen_text = true;
    } else if (piece.has("SpecialToken")) {
      const std::string name = piece.at("SpecialToken").at("id").text();
      const JsonNode ids = n.at("special_tokens").at(name.c_str()).at("ids");
      for (const JsonNode& id : ids.items()) (seen_text ? after : before).push_back(id.id());
    } else {
      piece.refuse("SpecialToken, Sequence");
    }
  }
  if (!seen_text) n.at("single").expected("a Sequence A");
  out.prefix.insert(out.prefix.begin(), before.begin(), before.end());
  out.suffix.insert(out.suffix.end(), after.begin(), after.end());
}

// ["[SEP]", 102]
int32_t read_named_id(const JsonNode& n) {
  if (n.list_size() != 2) n.expected("a token and its id");
  return n.item(1).id();
}

void read_post_processor(const JsonNode& n, TokenizerFile& out, int depth = 0) {
  n.check_depth(depth);
  const std::string type = n.type();
  if (type == "Sequence") {
    for (const JsonNode& child : n.at("processors").items()) read_post_processor(child, out, depth + 1);
  } else if (type == "TemplateProcessing") {
    read_template(n, out);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    out.prefix.insert(out.prefix.begin(), read_named_id(n.at("cls")));
    out.suffix.push_back(read_named_id(n.at("sep")));
  } else if (type != "ByteLevel") {  // ByteLevel moves offsets only, which we do not keep
    n.at("type").refuse("Sequence, TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel");
  }
}

// The vocabulary's id wins over the one given here, as in the reference.
std::vector<AddedToken> read_added(const JsonNode& n, const Vocabulary& vocab) {
  std::vector<AddedToken> out;
  for (const JsonNode& t : n.items()) {
    AddedToken a{.content = t.at("content").text_up_to(kMaxTokenBytes), .id = t.at("id").id()};
    if (const auto it = vocab.find(a.content); it != vocab.end()) a.id = it->second;
    a.special = t.flag("special", false);
    a.normalized = t.flag("normalized", !a.special);
    a.lstrip = t.flag("lstrip", false);
    a.rstrip = t.flag("rstrip", false);
    a.single_word = t.flag("single_word", false);
    out.push_back(std::move(a));
  }
  return out;
}

}  // namespace

TokenizerFile read_tokenizer_file(const std::filesystem::path& path) {
  const JsonFile file(path);
  const JsonNode root = file.root();
  TokenizerFile out;
  out.model = read_model(root.at("model"));
  if (root.has("added_tokens")) out.added = read_added(root.at("added_tokens"), out.vocab());
  if (root.has("normalizer")) read_normalizer(root.at("normalizer"), out.normalizer);
  if (root.has("pre_tokenizer")) read_pre_tokenizer(root.at("pre_tokenizer"), out.pre_tokenizer);
  if (root.has("post_processor")) read_post_processor(root.at("post_processor"), out);
  if (root.has("decoder")) read_decoder(root.at("decoder"), out.decoder.emplace());
  return out;
}

}  // namespace fewbit
