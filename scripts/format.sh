#!/usr/bin/env bash
# Formats the C++ and CUDA sources with clang-format 14, the version that both Debian 12 and Ubuntu 24.04 have.
#
#   scripts/format.sh [FILE…]           formats (default: every source of the tree)
#   scripts/format.sh --width [FILE…]   exit 1 where a line has more than 120 characters (scripts and CMake files too)
#   scripts/format.sh --check [FILE…]   changes nothing; exit 1 where a file would change or a line is too long
#
# Without clang-format-14 nothing is formatted, and --check looks at the width only and says SKIPPED (package
# clang-format-14).
set -euo pipefail
limit=120

mode=format
case "${1:-}" in
  --check | --width) mode="${1#--}"; shift ;;
  -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  -*) echo "format.sh: unknown option $1; known: --check, --width, --help" >&2; exit 2 ;;
esac
[ $mode = check ] && "$0" --width "$@"
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  cd "$(dirname "$0")/.."
  patterns=('*.h' '*.cpp' '*.cu' '*.cuh')
  # Not yet refilled: the scripts that drive other people's programs, and the GPU machine's.
  if [ "$mode" = width ]; then
    patterns+=('*.py' '*.sh' '*.cmake' '*CMakeLists.txt' ':!scripts/interop' ':!scripts/gpu_check.sh')
  fi
  mapfile -t files < <(git ls-files --cached --others --exclude-standard --deduplicate "${patterns[@]}" 2>/dev/null |
                       while read -r f; do [ ! -f "$f" ] || echo "$f"; done)
  [ ${#files[@]} -gt 0 ] || { echo "SKIPPED: no sources; git lists them, so this needs a git checkout"; exit 0; }
fi

if [ "$mode" = width ]; then
  # C.UTF-8: characters are counted, not bytes.
  long=$(LC_ALL=C.UTF-8 grep -aHnE "^.{$((limit + 1)),}" "${files[@]}" | cut -d: -f1,2) || true
  [ -z "$long" ] && exit 0
  while read -r place; do echo "$place: longer than $limit characters"; done <<<"$long"
  exit 1
fi
if ! command -v clang-format-14 >/dev/null; then
  echo "SKIPPED: clang-format-14 is not installed (package clang-format-14)"
elif [ "$mode" = check ]; then
  clang-format-14 --dry-run -Werror "${files[@]}"
else
  clang-format-14 -i "${files[@]}"
fi
