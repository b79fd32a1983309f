#include "src/core/log.h"

#include <atomic>

namespace fewbit {
namespace {
std::atomic<LogSink> g_sink{nullptr};
}

void set_log_sink(LogSink sink) { g_sink = sink; }
void log(LogLevel level, const std::string& line) {
  if (LogSink sink = g_sink) sink(level, line);
}

}  // namespace fewbit
