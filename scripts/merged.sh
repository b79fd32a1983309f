#!/usr/bin/env bash
# Parses (nothing is compiled) the sources that a build from nothing merges eight at a time (fewbit_merge of
# scripts/cmake/fewbit_layer.cmake). A build with a compiler cache takes each alone and never sees that two of them have
# a name in common; CI does. All of them take two minutes on two cores.
#
#   scripts/merged.sh [--changed]    all of them, or those with a source that differs from the merge base with main; a
#                                    source that came or went moves those behind it, so then again all
set -euo pipefail
cd "$(dirname "$0")/.."
changed=false
case "${1:-}" in
  '') ;;
  --changed) changed=true ;;
  -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) echo "merged.sh: unknown option $1; known: --changed, --help" >&2; exit 2 ;;
esac

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
PATH="$PATH:/usr/local/cuda/bin" cmake -S . -B "$folder" -G Ninja -DFEWBIT_PRECOMPILE=ON >"$folder/log" 2>&1 || {
  cat "$folder/log" >&2
  exit 1
}
names=''
if $changed; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main)
  [ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse HEAD^1)
  came_or_went=$(
    git diff --name-only --diff-filter=ADR "$base" -- '*.cpp'
    git ls-files -o --exclude-standard -- '*.cpp'
  )
  [ -n "$came_or_went" ] || names=$(git diff --name-only "$base" -- '*.cpp')
  [ -n "$came_or_went$names" ] || exit 0
fi
python3 - "$folder" "$names" <<'END_PYTHON' | xargs -0 -r -P "$(nproc)" -n 1 bash -c
import json, os, re, sys
folder, names = sys.argv[1], set(sys.argv[2].split())
for entry in json.load(open(folder + "/compile_commands.json")):
    if not re.search(r"/Unity/unity_\d+_cxx\.cxx$", entry["file"]):
        continue
    sources = re.findall(r'^#include "(.*)"', open(entry["file"]).read(), re.M)
    if names and not names & {os.path.relpath(s) for s in sources}:
        continue
    command = re.sub(r"-Winvalid-pch -include \S*cmake_pch\.hxx ", "", entry["command"])
    command = re.sub(r" -o \S+| -MF? \S+| -M[TD] \S+| -MD", "", command)
    print(f"cd {entry['directory']} && {command} -fsyntax-only", end="\0")
END_PYTHON
