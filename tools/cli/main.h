#pragma once
// The one main of the four programs: looks the program's commands up, parses, runs, and is the only place
// that catches Error. Exit codes: 0 done, 1 refused or failed, 2 usage, 75 stopped on request and resumable.

namespace fewbit::cli {

int run(const char* program, int argc, char** argv);
double seconds_since_start();  // of run()

}  // namespace fewbit::cli
