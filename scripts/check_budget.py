#!/usr/bin/env python3
"""Lists files and functions larger than the budgets of docs/architecture.md, for the reader's eye. Fails nothing."""
import os
import re

HEADER, SOURCE, FUNCTION = 150, 400, 60


def functions(lines):
    """(name, length) of top-level brace blocks that look like functions in clang-format's style."""
    start = None
    name = ""
    for i, line in enumerate(lines):
        if start is None and re.match(r"^[A-Za-z_].*\)[^;]*\{\s*$", line):
            start, name = i, line.split("(")[0].split()[-1]
        elif start is not None and line.startswith("}"):
            yield name, i - start + 1
            start = None


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for top in ("src", "kernels", "formats", "tools"):
        for folder, _, files in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(files):
                if not name.endswith((".h", ".cpp", ".cu", ".cuh")):
                    continue
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    lines = f.read().split("\n")
                short = os.path.relpath(path, root)
                limit = HEADER if name.endswith(".h") else SOURCE
                if len(lines) > limit:
                    print(f"{short}: {len(lines)} lines (budget {limit})")
                for fn, length in functions(lines):
                    if length > FUNCTION:
                        print(f"{short}: {fn}() has {length} lines (budget {FUNCTION})")


if __name__ == "__main__":
    main()
