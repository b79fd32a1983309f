#include "tools/cli/main.h"

int main(int argc, char** argv) { return fewbit::cli::run("convert", argc, argv); }
