#pragma once
// Leveled log lines to a sink that the program installs; silent by default, so that tests are quiet.
#include <string>

namespace fewbit {

enum class LogLevel { debug, info, warning };
using LogSink = void (*)(LogLevel, const std::string&);

void set_log_sink(LogSink sink);
void log(LogLevel level, const std::string& line);
inline void log_info(const std::string& line) { log(LogLevel::info, line); }
inline void log_warning(const std::string& line) { log(LogLevel::warning, line); }

}  // namespace fewbit
