#pragma once
// Random damage to files, for tests that a reader ends in a result or in an Error, whatever it is given.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

namespace fewbit::test {

// `bytes` with one to three wounds within its first `front` bytes: bits turned, runs overwritten, cut out or said
// twice, digits replaced, the end cut off. The same seed, the same wounds.
std::string damaged(std::string bytes, size_t front, uint64_t seed);

// Runs `read` on `count` damaged versions; all it may throw is an Error.
// How many were refused.
int expect_refused_or_read(const std::string& bytes, size_t front, int count,
                           const std::function<void(const std::string& damaged)>& read);

}  // namespace fewbit::test
