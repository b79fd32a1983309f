#pragma once
// The texts for evaluation that ship with the program.
#include <string>

namespace fewbit {

// "builtin" is the English text that a small model can be judged by, "builtin:NAME" the folder NAME of evaluation/:
// its files, joined by a newline, in name order. Error{usage} that lists the names.
bool is_builtin_evaluation(const std::string& name);
std::string builtin_evaluation(const std::string& name);

}  // namespace fewbit
