#!/usr/bin/env python3
"""Reads a ctest log and prints "N passed, N failed, N skipped"; checks that failed outside ctest count as failures."""
import re
import sys


def main(log, extra_failed):
    passed = failed = skipped = 0
    with open(log, errors="replace") as f:
        for line in f:
            m = re.match(r"\s*\d+/\d+ Test\s+#\d+: .*?(Passed|\*\*\*\w+|\*\*\*Not Run)", line)
            if not m:
                continue
            if m.group(1) == "Passed":
                passed += 1
            elif m.group(1) == "***Skipped":
                skipped += 1
            else:
                failed += 1
    failed += extra_failed
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
