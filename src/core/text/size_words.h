#pragma once
// Sizes as people write them.
#include <string_view>

namespace fewbit {

// Bytes of "5GB", "512 MiB" or "4096"; 0 where the text is no size.
double bytes_in_words(std::string_view text);

}  // namespace fewbit
