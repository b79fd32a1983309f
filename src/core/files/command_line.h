#pragma once
// The command line of this process, as one would paste it into a shell.
#include <string>

namespace fewbit {

std::string this_command();    // "" where the system does not tell
std::string resume_command();  // the same with --resume, to go on with what it began
std::string shell_word(const std::string& word);

}  // namespace fewbit
