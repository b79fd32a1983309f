#!/usr/bin/env bash
# On a machine with a GPU: builds, runs every GPU test, compute-sanitizer over them, and the benches; writes the summary to
# docs/gpu-check.md and full logs to the folder given (default build/gpu-check).
#   scripts/gpu_check.sh [LOGS]       FEWBIT_TEST_REFERENCE=DIR names the reference material
set -uo pipefail
cd "$(dirname "$0")/.."
logs=$(mkdir -p "${1:-build/gpu-check}" && cd "${1:-build/gpu-check}" && pwd)
export PATH="$PATH:/usr/local/cuda/bin"
# memcheck sees every kernel test; the two slower checkers see the GPU twins of the op tests but for the longest.
filter_memcheck="${FEWBIT_SANITIZER_FILTER:-*}"
filter_racecheck="${FEWBIT_SANITIZER_FILTER:-*Cuda*:-*Attention*:*ErrorFeedback*:*Refine*:ExecCuda*}"
filter_initcheck="${FEWBIT_SANITIZER_FILTER:-*Cuda*:-*Attention*:*ErrorFeedback*:*Refine*:ExecCuda*:*Gemm*:*Factor*:*Gram*}"
rows=()
checkers=()
note() { rows+=("| $1 | $2 |"); echo "$1: $2"; }

if [ -z "${FEWBIT_PREBUILT:-}" ]; then
  scripts/build --cuda quantize evaluate runner convert tests ops_bench >"$logs/build.log" 2>&1 || { tail -30 "$logs/build.log"; exit 1; }
fi

failures=0
bench=$(ls build/bin/ops_bench build/tests/ops_bench 2>/dev/null | head -1)
for t in kernels run quant; do
  build/tests/test_$t --gtest_brief=1 >"$logs/test_$t.log" 2>&1; status=$?
  passed=$(grep -oE '\[  PASSED  \] [0-9]+' "$logs/test_$t.log" | grep -oE '[0-9]+' | tail -1)
  skipped=$(grep -cE '^\[  SKIPPED \]' "$logs/test_$t.log")
  failed=$(grep -oE '[0-9]+ FAILED TEST' "$logs/test_$t.log" | grep -oE '^[0-9]+' | tail -1)
  note "tests/$t" "${passed:-0} passed, ${failed:-0} failed, $skipped skipped (exit $status)"
  [ $status -eq 0 ] || { failures=$((failures + 1)); grep -E 'Failure|FAILED' "$logs/test_$t.log" | head -20; }
done
# The three checkers run side by side; each is cut off after FEWBIT_SANITIZER_SECONDS, which counts as a failure.
seconds="${FEWBIT_SANITIZER_SECONDS:-900}"
for tool in memcheck racecheck initcheck; do
  filter="filter_$tool"
  timeout "$seconds" compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 9 build/tests/test_kernels --gtest_brief=1 \
    --gtest_filter="${!filter}" >"$logs/$tool.log" 2>&1 &
  checkers+=("$tool $!")
done
for checker in "${checkers[@]}"; do
  read -r tool pid <<<"$checker"
  wait "$pid"; status=$?
  summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$tool.log" | tail -1 | sed 's/=* *//')
  passed=$(grep -oE '\[  PASSED  \] [0-9]+' "$logs/$tool.log" | grep -oE '[0-9]+' | tail -1)
  # Kernels of cuBLAS (nvjet_*) synchronise in ways that racecheck does not follow; what counts is ours.
  if [ $tool = racecheck ]; then
    ours=$(grep 'Race reported' "$logs/$tool.log" | grep -vc nvjet)
    summary="$ours hazards in our kernels ($summary, the rest inside cuBLAS)"
    [ $status -eq 9 ] && [ "$ours" -eq 0 ] && status=0
  fi
  [ $status -eq 124 ] && summary="cut off after $seconds s"
  note "compute-sanitizer $tool" "${summary:-exit $status}, ${passed:-0} tests passed under it"
  [ $status -eq 0 ] || failures=$((failures + 1))
done
"$bench" >"$logs/ops_bench.txt" 2>&1 || failures=$((failures + 1))

{
  echo "# GPU check"
  echo
  echo "Written by \`scripts/gpu_check.sh\` on $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), CUDA $(nvcc --version | grep -oE 'release [0-9.]+' | cut -d' ' -f2), $(date -u +%Y-%m-%d), kernels of \`$(git log -1 --format=%h -- kernels 2>/dev/null || echo "${FEWBIT_COMMIT:-unknown}")\`."
  echo
  echo "| check | result |"
  echo "|---|---|"
  printf '%s\n' "${rows[@]}"
  echo
  echo "## Kernels (cold weights, random data, medians)"
  echo
  echo '```'
  cat "$logs/ops_bench.txt"
  echo '```'
} >docs/gpu-check.md
cp docs/gpu-check.md "$logs/"
[ $failures -eq 0 ]
