#!/usr/bin/env bash
# clang-tidy over the sources of a configured build folder (default build-cpu). Usage: scripts/tidy.sh [FOLDER] [FILE…]
set -euo pipefail
cd "$(dirname "$0")/.."
folder="${1:-build-cpu}"; shift || true
if [ $# -eq 0 ]; then mapfile -t files < <(git ls-files 'src/*.cpp' 'formats/*.cpp' 'kernels/*.cpp' 'tools/*.cpp'); else files=("$@"); fi
clang-tidy -p "$folder" --quiet "${files[@]}"
