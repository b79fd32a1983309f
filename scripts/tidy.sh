#!/usr/bin/env bash
# clang-tidy (checks: .clang-tidy) over host sources, with the compile commands of a configured build folder.
#
#   scripts/tidy.sh [--build FOLDER] [FILE…]    named files (default: all of src, formats, kernels, tools)
#   scripts/tidy.sh --changed [--limit N]       files changed since the merge base with main; a finding is an error
#
# --changed looks at the .cpp files of src, formats, kernels and tools that differ from the merge base with origin/main
# (else main), uncommitted ones included, at most N of them (default 20; the others are named). On main itself the
# base is the first parent of HEAD: what the last landing brought. TIDY_BASE names another commit. The static analyzer
# and the slowest checks are left out: they take longer than all others together. Without a base, clang-tidy-16 or
# compile commands it says SKIPPED and passes.
# The version: clang-tidy-14, the default of Debian 12, cannot read <source_location>; Ubuntu 24.04 has 16 too.
# FOLDER: by default build-cpu, else build.
set -euo pipefail
cd "$(dirname "$0")/.."
tidy=clang-tidy-16
fast='-clang-analyzer-*,-bugprone-reserved-identifier,-bugprone-stringview-nullptr'

changed=false limit=20 folder='' files=()
while [ $# -gt 0 ]; do
  case "$1" in
    --changed) changed=true ;;
    --limit | --build)
      [ $# -gt 1 ] || { echo "tidy.sh: $1 needs a value" >&2; exit 2; }
      if [ "$1" = --limit ]; then limit=$2; else folder=$2; fi
      shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    -*) echo "tidy.sh: unknown option $1; known: --changed, --limit N, --build FOLDER, --help" >&2; exit 2 ;;
    *) files+=("$1") ;;
  esac
  shift
done

skip() {
  echo "SKIPPED: $1"
  $changed && exit 0
  exit 2
}
if [ -z "$folder" ]; then folder=build-cpu; [ -f build-cpu/compile_commands.json ] || folder=build; fi
command -v $tidy >/dev/null || skip "$tidy is not installed (package $tidy)"
[ -f "$folder/compile_commands.json" ] || skip "$folder/compile_commands.json is missing; configure a build first"
# clang refuses headers that GCC has precompiled; and of sources that are compiled several at a time the commands name
# only CMake's file that includes them.
commands=$(mktemp -d)
trap 'rm -rf "$commands"' EXIT
python3 - "$folder/compile_commands.json" >"$commands/compile_commands.json" <<'END'
import json, os, re, sys
single = []
for entry in json.load(open(sys.argv[1])):
    entry["command"] = re.sub(r"-Winvalid-pch -include \S*cmake_pch\.hxx ", "", entry["command"])
    sources = [entry["file"]]
    if re.search(r"/Unity/unity_\d+_cxx\.cxx$", entry["file"]) and os.path.exists(entry["file"]):
        sources = re.findall(r'^#include "(.*)"', open(entry["file"]).read(), re.M)
    single += [{**entry, "file": s, "command": entry["command"].replace(entry["file"], s)} for s in sources]
json.dump(single, sys.stdout, indent=0)
END
folder=$commands

if ! $changed; then
  [ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files 'src/*.cpp' 'formats/*.cpp' 'kernels/*.cpp' 'tools/*.cpp')
  $tidy -p "$folder" --quiet "${files[@]}"
  exit
fi

base=${TIDY_BASE:-$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null)} || true
[ -n "$base" ] || skip "no merge base with main"
if [ "$base" = "$(git rev-parse HEAD)" ] && git diff --quiet HEAD; then
  base=$(git rev-parse --verify --quiet HEAD^1) || skip "this is main, and its parent is not in this clone"
fi
# A file that only moved (R100) is no change; one that the build does not know (another platform's) is left out.
mapfile -t files < <(git diff -M --name-status --diff-filter=AMR "$base" -- src formats kernels tools |
                     awk '$1 != "R100" && /\.cpp$/ {print $NF}' |
                     while read -r f; do grep -qF "$PWD/$f\"" "$folder/compile_commands.json" && echo "$f"; done)
[ ${#files[@]} -gt 0 ] || { echo "no source changed since ${base:0:12}"; exit 0; }
if [ ${#files[@]} -gt "$limit" ]; then
  echo "${#files[@]} sources changed since ${base:0:12}; looking at the first $limit, not at:" "${files[@]:limit}"
  files=("${files[@]:0:limit}")
fi
# Compile commands are GCC's; clang does not know all of its warnings.
printf '%s\0' "${files[@]}" |
  xargs -0 -P "$(nproc)" -n 1 $tidy -p "$folder" --quiet --extra-arg=-Wno-unknown-warning-option \
    --checks="$fast" --warnings-as-errors='*' 2>/dev/null || {
  echo "clang-tidy found the above (scripts/tidy.sh FILE shows one file's)"
  exit 1
}
