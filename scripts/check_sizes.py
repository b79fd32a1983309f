#!/usr/bin/env python3
"""Checks how long functions and files are, and how many files stand in a folder (docs/architecture.md, rule 12).

    scripts/check_sizes.py [--root DIR]

Function lengths come from Universal Ctags; without it the check says SKIPPED and passes. Exit 0: all within the limits,
or skipped; 1: each offence is a line `file:line: what it is, and the limit`.

A function or file may be longer where it says why: a comment line `// Long because: REASON`, in the comment right above
the function, or among the first lines of the file.
"""
import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys

TOPS = ("src", "kernels", "formats", "tools", "tests")
SOURCES = (".h", ".cpp", ".cu", ".cuh")

HOST_FUNCTION = 60
DEVICE_FUNCTION = 80  # a kernel keeps one set of registers and barriers through all of its phases
TEST_FUNCTION = 120  # a test tells one story from its input to its last expectation
HEADER_FILE = 150
SOURCE_FILE = 400
FAMILY_FILE = 150  # a family of models is a record and an op list
FAMILIES = "src/model/archs/"
FOLDER = 40  # source files, without those of folders inside

REASON = re.compile(r"\s*// Long because: \S")
FIRST_LINES = 15  # where a file's reason may stand

# What the parser of ctags must not take for a name: __launch_bounds__(…) stands where it expects the function's.
CTAGS = ["ctags", "--options=NONE", "--langmap=C++:+.cu.cuh.h", "-D", "__launch_bounds__(...)=", "--kinds-C++=f",
         "--fields=+ne", "--output-format=json", "-L", "-", "-f", "-"]


def sources_of(root):
    """Paths of all sources, relative to the root."""
    found = []
    for top in TOPS:
        for folder, _, files in os.walk(os.path.join(root, top)):
            found += [os.path.relpath(os.path.join(folder, f), root) for f in files if f.endswith(SOURCES)]
    return sorted(found)


def read_lines(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read().splitlines()


def tags_of(root, paths):
    """{path: [(name, line of the name, last line), ...]} from ctags, without lambdas: they belong to their function."""
    done = subprocess.run(CTAGS, cwd=root, input="\n".join(paths), text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"check_sizes: ctags failed: {done.stderr.strip()}")
    found = collections.defaultdict(list)
    for line in done.stdout.splitlines():
        tag = json.loads(line)
        if "end" in tag and not tag["name"].startswith("__anon"):
            found[tag["path"]].append((tag["name"], tag["line"], tag["end"]))
    return found


def unseen_blocks(lines, tags):
    """Functions that ctags does not see (a few templates): formatted, they begin at the margin and end with a brace
    there."""
    known = {end for _, _, end in tags}
    head = None
    for number, line in enumerate(lines, 1):
        if head is None and re.match(r"(?!namespace|struct|class)[A-Za-z_].*\)[^;]*\{$", line):
            head = number
        elif head is not None and line.startswith("}"):
            if number not in known:
                yield re.sub(r"\(.*", "", lines[head - 1]).split()[-1], head, number
            head = None


def first_line(lines, name_line):
    """The first line of the declaration whose name stands on `name_line`: that of its template or its attributes."""
    first = name_line
    while first > 1:
        above = lines[first - 2].strip()
        if not above or above.startswith(("//", "#")) or above.endswith((";", "{", "}", ":", "*/")):
            break
        first -= 1
    return first


def is_device(lines, first):
    """Whether the declaration that begins on line `first` is that of device code."""
    head = ""
    for line in lines[first - 1:]:
        head += line
        if "{" in line:
            break
    return re.search(r"__global__|__device__|\bFEWBIT_HD\b", head.split("{")[0]) is not None


def has_reason(lines, first):
    """Whether the comment right above line `first` holds a line with the reason."""
    above = first - 1
    while above >= 1 and lines[above - 1].lstrip().startswith("//"):
        if REASON.match(lines[above - 1]):
            return True
        above -= 1
    return False


def function_limit(path, lines, first):
    if path.startswith("tests/"):
        return TEST_FUNCTION, "a test"
    if path.endswith((".cu", ".cuh")) and is_device(lines, first):
        return DEVICE_FUNCTION, "device code"
    return HOST_FUNCTION, "host code"


def function_complaints(path, lines, tags):
    for name, name_line, end in sorted(set(tags) | set(unseen_blocks(lines, tags)), key=lambda t: t[1]):
        first = first_line(lines, name_line)
        length = end - first + 1
        limit, what = function_limit(path, lines, first)
        if length > limit and not has_reason(lines, first):
            yield f"{path}:{first}: {name}() has {length} lines; the limit for {what} is {limit}"


def file_complaints(path, lines):
    limit, what = (HEADER_FILE, "a header") if path.endswith(".h") else (SOURCE_FILE, "a source")
    if path.startswith(FAMILIES):
        limit, what = FAMILY_FILE, "a family of models"
    if len(lines) > limit and not any(REASON.match(line) for line in lines[:FIRST_LINES]):
        yield f"{path}:1: the file has {len(lines)} lines; the limit for {what} is {limit}"


def folder_complaints(paths):
    counts = collections.Counter(os.path.dirname(path) for path in paths)
    for folder, count in sorted(counts.items()):
        if count > FOLDER:
            yield f"{folder}/: {count} source files; the limit for a folder is {FOLDER}"


def complaints(root):
    paths = sources_of(root)
    tags = tags_of(root, paths)
    for path in paths:
        lines = read_lines(root, path)
        yield from file_complaints(path, lines)
        yield from function_complaints(path, lines, tags[path])
    yield from folder_complaints(paths)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                        help="the tree to check (default: this one)")
    root = parser.parse_args().root
    if not shutil.which("ctags") or "Universal Ctags" not in subprocess.run(
            ["ctags", "--version"], capture_output=True, text=True).stdout:
        print("SKIPPED: Universal Ctags is not installed (package universal-ctags)")
        return 0
    bad = list(complaints(root))
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
