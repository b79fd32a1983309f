#!/usr/bin/env python3
"""Reads the logs of ctest and of scripts/check and prints what failed, then "N passed, N failed, N skipped".

    scripts/count_tests.py CTEST_LOG CHECK_LOG

Exit 1 where something failed or where ctest ran no test.
"""
import re
import sys

CTEST = re.compile(r"\s*\d+/\d+ Test\s+#\d+: (.*?)[ .]*(Passed|\*\*\*Skipped|\*\*\*\w+)")
CHECK = re.compile(r"(check [^:]+): (passed|skipped|FAILED)$")


def results(path, pattern):
    """(name, 'passed', 'skipped' or 'failed') of each line that fits."""
    with open(path, errors="replace") as f:
        found = [(m.group(1), m.group(2).strip("*").lower()) for m in map(pattern.match, f) if m]
    return [(name, word if word in ("passed", "skipped") else "failed") for name, word in found]


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: scripts/count_tests.py CTEST_LOG CHECK_LOG")
    tests, checks = results(sys.argv[1], CTEST), results(sys.argv[2], CHECK)
    words = [word for _, word in tests + checks]
    counts = {word: words.count(word) for word in ("passed", "failed", "skipped")}
    for name, word in tests + checks:
        if word == "failed":
            print(f"FAILED: {name}")
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 0 if counts["failed"] == 0 and any(word == "passed" for _, word in tests) else 1


if __name__ == "__main__":
    sys.exit(main())
