#!/usr/bin/env python3
"""Reads the logs of ctest and of scripts/check and prints "N passed, N failed, N skipped".

    scripts/count_tests.py CTEST_LOG CHECK_LOG

Exit 1 where something failed or where ctest ran no test.
"""
import re
import sys

CTEST = re.compile(r"\s*\d+/\d+ Test\s+#\d+: .*?(Passed|\*\*\*Skipped|\*\*\*\w+)")
CHECK = re.compile(r"check [^:]+: (passed|skipped|FAILED)$")


def results(path, pattern):
    """'passed', 'skipped' or 'failed' of each line that fits."""
    with open(path, errors="replace") as f:
        words = [m.group(1).strip("*").lower() for m in map(pattern.match, f) if m]
    return [word if word in ("passed", "skipped") else "failed" for word in words]


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: scripts/count_tests.py CTEST_LOG CHECK_LOG")
    tests, checks = results(sys.argv[1], CTEST), results(sys.argv[2], CHECK)
    counts = {word: (tests + checks).count(word) for word in ("passed", "failed", "skipped")}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 0 if counts["failed"] == 0 and "passed" in tests else 1


if __name__ == "__main__":
    sys.exit(main())
