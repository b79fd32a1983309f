#!/usr/bin/env python3
"""The tables in the READMEs of kernels/ that say which kernel a problem takes, from the rules that the code asks.

    scripts/kernel_tables.py --check      fails where a README differs
    scripts/kernel_tables.py --write      writes them
    --runner PROGRAM                      default build/bin/runner (any build; no GPU is needed)

A README has a table between `<!-- choice: begin -->` and `<!-- choice: end -->`.
"""
import argparse
import json
import os
import subprocess
import sys

# room -> the op of kernels/choice/kernel_choice.h whose rules it holds
ROOMS = {
    "products/marlin": "packed",
    "products": "dense",
    "products/bytes": "bytes",
    "attention": "attention",
}
BEGIN, END = "<!-- choice: begin -->\n", "<!-- choice: end -->"


def table(rules):
    lines = ["| types | rows | GPU | kernel | file | how |", "|---|---|---|---|---|---|"]
    for r in rules:
        cells = [r["types"], r["rows"], r["gpu"], f"`{r['kernel']}`", f"`{r['file']}`", r["how"]]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines.append("The first line that fits is taken (`kernels/choice/kernel_choice.cpp`).")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true")
    action.add_argument("--write", action="store_true")
    parser.add_argument("--runner", default="build/bin/runner")
    arguments = parser.parse_args()
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.access(arguments.runner, os.X_OK):
        sys.exit(f"kernel_tables: no program {arguments.runner}; run scripts/build first, or name one with --runner")
    command = [arguments.runner, "bench", "--ops", "--explain", "--json", "-"]
    rules = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["rules"]
    stale = []
    for room, op in ROOMS.items():
        path = f"kernels/{room}/README.md"
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if BEGIN not in text or END not in text:
            sys.exit(f"kernel_tables: {path} has no lines `{BEGIN.strip()}` and `{END}`")
        head, rest = text.split(BEGIN, 1)
        tail = rest.split(END, 1)[1]
        wanted = head + BEGIN + table([r for r in rules if r["op"] == op]) + END + tail
        if wanted == text:
            continue
        stale.append(path)
        if arguments.write:
            with open(path, "w", encoding="utf-8") as f:
                f.write(wanted)
    if stale and arguments.check:
        for path in stale:
            print(f"{path}: the table of kernels is not what the code says; run scripts/kernel_tables.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
