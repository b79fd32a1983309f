#pragma once
// Chat templates: the part of Jinja that they are written in, with the values and the whitespace that Hugging Face
// transformers gives them (sandboxed environment, trim_blocks, lstrip_blocks, loop controls, `generation`).
// docs/chat-templates.md lists what is understood; everything else is refused by name and line.
#include <memory>
#include <string>
#include <string_view>

namespace fewbit::jinja {

struct Syntax;

class Template {
 public:
  // `where` begins every message. Error{checkpoint} for what is no valid template, Error{unsupported} for a construct
  // that is not implemented here; both name the line.
  static Template parse(std::string_view source, const std::string& where);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // `variables` is a JSON object. Several threads may render at once. Error{checkpoint} with the template's words for
  // raise_exception, for operations that Python refuses and for renderings beyond the limits of steps, depth and
  // memory; Error{unsupported} for functions, methods and attributes that are not implemented.
  std::string render(const std::string& variables_json) const;

 private:
  explicit Template(std::unique_ptr<Syntax>);
  std::unique_ptr<Syntax> syntax_;
};

}  // namespace fewbit::jinja
