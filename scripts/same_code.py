#!/usr/bin/env python3
"""Says whether two builds have the same machine code on the GPU, function by function.

    scripts/same_code.py OLD NEW [--rename OLD_REGEX=NEW ...]    .o, .a or programs with device code
    scripts/same_code.py OLD NEW --resources                     a table of the kernels whose code changed: registers,
                                                                 stack, shared memory and instructions, old -> new

Commits that only move or rename are proven with it: every kernel of OLD must stand in NEW with the same instructions.
Names are compared demangled, without what the compiler adds for a file's anonymous namespace; --rename maps old names
to new ones. A function whose name has no partner is paired with one of the same code. Exit 0: the same code; 1: not.

Needs cuobjdump and nvdisasm (CUDA toolkit) and c++filt (binutils). A toolkit that was installed in parts may lack the
first two; the PyPI packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm hold the programs: put their folders in
PATH.
"""
import argparse
import collections
import hashlib
import os
import re
import shutil
import subprocess
import sys

UNIQUE = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}(_\d+)?")
UNIT = re.compile(r"_INTERNAL_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}(_\d+)?")


def demangled(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True).stdout
    plain = [UNIT.sub("", UNIQUE.sub("", line)) for line in text.split("\n")]
    # The length of an anonymous namespace's mangled name is all that is left of it in names that c++filt leaves alone.
    return dict(zip(names, plain))


def functions(path):
    """{(arch, mangled name): (digest of its instructions, count of instructions)}"""
    process = subprocess.Popen(["cuobjdump", "-sass", path], stdout=subprocess.PIPE, text=True, errors="replace")
    found, arch, name, digest, count = {}, "", None, None, 0
    for line in process.stdout:
        stripped = line.strip()
        if stripped.startswith("arch = "):
            arch = stripped[7:]
        elif stripped.startswith("Function : "):
            if name:
                found[(arch_of_name, name)] = (digest.hexdigest(), count)
            name, digest, count, arch_of_name = stripped[11:], hashlib.sha1(), 0, arch
        elif name and stripped.startswith("/*"):
            digest.update(stripped.encode())
            count += 1 if ";" in stripped else 0
    if name:
        found[(arch_of_name, name)] = (digest.hexdigest(), count)
    if process.wait() != 0:
        sys.exit(f"same_code: cuobjdump -sass {path} failed")
    return found


def resources(path):
    """{mangled name: [text of `cuobjdump -res-usage` by architecture]}"""
    text = subprocess.run(["cuobjdump", "-res-usage", path], text=True, capture_output=True, check=True).stdout
    found, arch, name = {}, "", None
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith("arch = "):
            arch = stripped[7:]
        elif stripped.startswith("Function "):
            name = stripped[9:].rstrip(":")
        elif stripped.startswith("REG:") and name:
            found[(arch, name)] = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", stripped))
    return found


def named(table, renames):
    """{(arch, plain name): [value, ...]}; a name can stand in several files of an archive"""
    plain = demangled(sorted({name for _, name in table}))
    result = collections.defaultdict(list)
    for (arch, name), value in sorted(table.items()):
        short = plain[name]
        for old, new in renames:
            short = re.sub(old, new, short)
        result[(arch, short)].append(value)
    return result


def print_resources(old_path, new_path, renames):
    old_code, new_code = named(functions(old_path), renames), named(functions(new_path), [])
    old, new = named(resources(old_path), renames), named(resources(new_path), [])
    rows = worse = 0
    print("| arch | kernel | registers | stack | shared | instructions |\n|---|---|---|---|---|---|")
    for key in sorted(new_code):
        if key not in old_code or [c[0] for c in old_code[key]] == [c[0] for c in new_code[key]]:
            continue
        a, b = (old.get(key) or [{}])[0], (new.get(key) or [{}])[0]
        cells = [f"{a.get(k, '?')} → {b.get(k, '?')}" for k in ("REG", "STACK", "SHARED")]
        print(f"| {key[0]} | {key[1][:160]} | {' | '.join(cells)} | {old_code[key][0][1]} → {new_code[key][0][1]} |")
        rows += 1
        worse += any(int(b.get(k, 0)) > int(a.get(k, 0)) for k in ("REG", "STACK", "SHARED"))
    print(f"{rows} kernels with other code, {worse} of them with more registers, stack or shared memory;",
          f"{len(set(old_code) - set(new_code))} only in OLD, {len(set(new_code) - set(old_code))} only in NEW")


def main():
    os.environ["PATH"] += ":/usr/local/cuda/bin"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD_REGEX=NEW")
    parser.add_argument("--resources", action="store_true")
    arguments = parser.parse_args()
    for needed in ("cuobjdump", "nvdisasm", "c++filt"):
        if not shutil.which(needed):
            sys.exit(f"same_code: {needed} not found; --help says where it comes from")
    for path in (arguments.old, arguments.new):
        if not os.path.isfile(path):
            sys.exit(f"same_code: {path} does not exist")
    if not all("=" in r for r in arguments.rename):
        sys.exit("same_code: --rename needs OLD_REGEX=NEW")
    renames = [tuple(r.split("=", 1)) for r in arguments.rename]
    if arguments.resources:
        print_resources(arguments.old, arguments.new, renames)
        return 0
    old, new = named(functions(arguments.old), renames), named(functions(arguments.new), [])
    same, other, alone = 0, [], []
    for key, values in old.items():
        if key not in new:
            alone.append(key)
        elif sorted(values) == sorted(new[key]):
            same += len(values)
        else:
            other.append(key)
    # Functions without a partner by name: by code.
    left = collections.Counter((key[0],) + value for key, values in new.items() if key not in old for value in values)
    paired, missing = 0, []
    for key in alone:
        for value in old[key]:
            if left[(key[0],) + value] > 0:
                left[(key[0],) + value] -= 1
                paired += 1
            else:
                missing.append(key)
    extra = sum(left.values())
    for arch, name in other:
        print(f"other code   {arch} {name}")
    for arch, name in missing:
        print(f"only in OLD  {arch} {name}")
    print(f"{same} functions with the same name and code, {paired} with the same code under another name,",
          f"{len(other)} with other code, {len(missing)} only in OLD, {extra} only in NEW")
    return 1 if other or missing or extra else 0


if __name__ == "__main__":
    sys.exit(main())
