#pragma once

namespace fewbit::cli {

// `quantize list`: what this version has.
void print_list();

}  // namespace fewbit::cli
