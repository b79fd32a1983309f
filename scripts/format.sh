#!/usr/bin/env bash
# clang-format over the tree; --check changes nothing and fails where something would change.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
if [ "${1:-}" = --check ]; then clang-format --dry-run -Werror "${files[@]}"; else clang-format -i "${files[@]}"; fi
