#include "src/text/documents.h"
#include "src/text/files/token_file.h"
#include "src/text/jinja/jinja.h"
#include "src/text/tokenizer.h"
#include "tests/hostile/readers.h"

namespace fewbit::test {

void read_tokenizer_bytes(const std::string& bytes, const Scratch& scratch) {
  const Tokenizer t = Tokenizer::open(put(scratch, "tokenizer.json", bytes));
  for (const char* text :
       {"The old house, 1234 - na\xc3\xafve\n\n\xff\xfe<bos>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", ""})
    t.decode(t.encode(text));
}

void read_template_bytes(const std::string& bytes, const Scratch&) {
  static const std::string kChat =
      R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"2+2?"},)"
      R"({"role":"assistant","content":"4","tool_calls":[{"function":{"name":"f","arguments":{"a":[1,2.5,null]}}}]}],)"
      R"("tools":null,"bos_token":"<s>","eos_token":"</s>","add_generation_prompt":true})";
  jinja::Template::parse(bytes, "template").render(kChat);
}

void read_documents_bytes(const std::string& bytes, const Scratch& scratch) {
  static const ChatTemplate kChat = ChatTemplate::open(scratch, "chatml");
  read_documents(put(scratch, "data.jsonl", bytes), [&]() -> const ChatTemplate& { return kChat; });
}

void read_token_ids_bytes(const std::string& bytes, const Scratch& scratch) {
  read_token_file(put(scratch, "ids.safetensors", bytes), 0, 0, 1000);
}

}  // namespace fewbit::test
