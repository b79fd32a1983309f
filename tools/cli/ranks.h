#pragma once
// The processes that a launcher (mpirun, srun) started this one with, as commands see them.
#include <span>
#include <string>
#include <string_view>

#include "src/ranks/ranks.h"

namespace fewbit::cli {

// Those that join_ranks() joined; this process alone before that. MPI knows one world for a process, and so do we.
Ranks& the_ranks();
// Joins the processes of a launch for a command. Error{usage} where they are several and the command, its first word or
// "", is not among those that run on several.
void join_ranks(const Launch&, std::string_view program, const std::string& command,
                std::span<const std::string> on_ranks);
// Where this process is, "block 5 of 32": in its last line, and in that about another rank of the machine that is gone.
void reach_place(const std::string& place);
std::string reached_place();  // "" before that; from any thread
// After the last call between ranks.
void leave_ranks();
// Error{device} where this rank's products have other last bits than those of rank 0: another GPU, or another CPU.
// Collective.
void require_alike(const Exec&);
// Prints the line of an Error and returns the exit code; of several ranks it names this one, its host and its place,
// and ends all of them.
int report_failure(const Launch&, std::string_view program, const std::string& line, int exit_code);

}  // namespace fewbit::cli
