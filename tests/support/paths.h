#pragma once
// Where the tests find things. The paths are compiled into one file (paths.cpp), so that all other objects are the same
// in every checkout and a compiler cache can share them.
#include <string>

namespace fewbit::test {

std::string in_source(const std::string& relative);  // a file of the checkout
std::string in_build(const std::string& relative);   // a file of the build folder, for example "bin/quantize"
std::string reference_dir();  // FEWBIT_TEST_REFERENCE of the environment, else the CMake variable FEWBIT_REFERENCE_DIR
std::string mpirun_path();    // "" where the build has no MPI

}  // namespace fewbit::test
