#!/usr/bin/env bash
# On a machine with a GPU: builds, runs every GPU test, compute-sanitizer over the kernel tests, and the benches; writes the
# summary to docs/gpu-check.md and full logs to the folder given (default build/gpu-check).
#   scripts/gpu_check.sh [LOGS]
#   FEWBIT_TEST_REFERENCE=DIR    the reference material (default: shared/ beside the checkout)
#   FEWBIT_SANITIZER_SECONDS=N   a piece of a checker is cut off after so long (default 600), which counts as a failure
#   FEWBIT_SANITIZER_JOBS=N      pieces at a time (default: half the processors); several GPUs take them in turn
#   FEWBIT_CHECKERS="memcheck …" only these of racecheck, memcheck and initcheck; the summary says which were left out
#   FEWBIT_PREBUILT=1            build/ and build-racecheck/ are there and current
set -uo pipefail
cd "$(dirname "$0")/.."
logs=$(mkdir -p "${1:-build/gpu-check}" && cd "${1:-build/gpu-check}" && pwd)
export PATH="$PATH:/usr/local/cuda/bin"
seconds="${FEWBIT_SANITIZER_SECONDS:-600}"
checkers="${FEWBIT_CHECKERS:-racecheck memcheck initcheck}"
slots="${FEWBIT_SANITIZER_JOBS:-$(($(nproc) / 2 + 1))}"
for needed in nvidia-smi compute-sanitizer; do
  command -v "$needed" >/dev/null || { echo "gpu_check: $needed not found; this needs a GPU machine with the CUDA toolkit" >&2; exit 1; }
done
gpus=$(nvidia-smi -L | wc -l)

# racecheck takes a build in which all lanes of a warp arrive at the barriers (kernels/device/barrier.cuh); a second folder, since
# all other checks run what is shipped.
if [ -z "${FEWBIT_PREBUILT:-}" ]; then
  {
    scripts/setup test && scripts/build --cuda quantize evaluate runner convert tests &&
      cmake -S . -B build-racecheck -G Ninja -DFEWBIT_CUDA=ON -DFEWBIT_RACECHECK=ON &&
      cmake --build build-racecheck --target test_kernels -j "$(nproc)"
  } >"$logs/build.log" 2>&1 || { tail -n 30 "$logs/build.log"; exit 1; }
fi

failures=0
rows=()
note() { rows+=("| $1 | $2 |"); echo "$1: $2"; }
# Tests of a log: those that passed, or have another word; each ends with its time.
passed() { cat "$@" | grep -cE '^\[       OK \].*ms\)$'; }
failed() { cat "$@" | grep -cE '^\[  FAILED  \].*ms\)$'; }
skipped() { cat "$@" | grep -cE '^\[  SKIPPED \].*ms\)$'; }

for t in kernels run quant; do
  (build/tests/test_$t >"$logs/test_$t.log" 2>&1; echo $? >"$logs/test_$t.status") &
done
wait
for t in kernels run quant; do
  log="$logs/test_$t.log" status=$(cat "$logs/test_$t.status")
  note "tests/$t" "$(passed "$log") passed, $(failed "$log") failed, $(skipped "$log") skipped (exit $status)"
  [ "$status" -eq 0 ] || { failures=$((failures + 1)); grep -E ': Failure$|^\[  FAILED' -A3 "$log" | head -n 40; }
done

# piece TOOL NAME FILTER [SHARDS]: test_kernels under a checker, in the background, a fixed number at a time.
pieces=()
begun_pieces=0
piece() {
  local tool=$1 name=$2 filter=$3 shards=${4:-1} program=build/tests/test_kernels shard id
  [[ " $checkers " == *" $tool "* ]] || return 0
  [ "$tool" = racecheck ] && program=build-racecheck/tests/test_kernels
  pieces+=("$tool $name $shards")
  for ((shard = 0; shard < shards; ++shard)); do
    while [ "$(jobs -rp | wc -l)" -ge "$slots" ]; do wait -n; done
    id="$tool-$name-$shard" gpu=$((begun_pieces++ % gpus))
    (
      begun=$SECONDS
      export CUDA_VISIBLE_DEVICES=$gpu GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard
      timeout -k 10 "$seconds" compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$program" --gtest_filter="$filter" >"$logs/$id.log" 2>&1
      echo "$? $((SECONDS - begun))" >"$logs/$id.status"
    ) &
  done
}
# memcheck sees every test. initcheck leaves out what cuBLAS and cuSOLVER do. racecheck is slow: it sees every kernel of ours
# that shares memory between threads, on sizes that end within two minutes. The slowest pieces start first.
# Large or on top of cuBLAS and cuSOLVER: under memcheck alone, but for what a line below names.
memcheck_alone='Dequantize.CudaMatches*:Divergence.CudaOf*:ErrorFeedback.*:Factor.*:Gram.*:GramLoss.*:MatrixEdit.*:RoundToGrid.*:ShiftTargets.*'
piece racecheck attention-prefill '*AttentionOn.Matches*_cuda'
piece racecheck attention-codes '*AttentionOn.Over*dim16_cuda'
piece racecheck attention-cached '*AttentionOn.Cached*dim16_cuda:*AttentionOn.Cached*len1_*_cuda'
piece racecheck attention-decode 'Attention.CudaTheLastTokensOfALongContext'
piece racecheck decode-layers 'DecodeLayers.CudaEqualsTheOpsOnSmall*' 3
piece initcheck decode-layers 'DecodeLayers.CudaEqualsTheOpsOnSmall*' 3
piece racecheck factor 'Factor.CudaIsThe*'
piece racecheck refine 'Refine.Cuda*:-Refine.CudaEveryStep*' 3
piece racecheck error-feedback '*ErrorFeedbackOn*in1_*_cuda:*ErrorFeedbackOn*in31_*_cuda:*ErrorFeedbackOn*in70_*_cuda:*ErrorFeedbackOn*in140_*_cuda'
piece racecheck fp8 'Fp8Gemm.CudaSmall*'
piece racecheck int8 'Int8Gemm.Cuda*' 2
piece racecheck few-rows 'FewRows.Cuda*:-FewRows.CudaSeveral*' 4
piece racecheck scales 'Choose*.CudaChooses*:Choose*.CudaEquals*'
piece racecheck fp4 'RoundFp4.Cuda*' 2
piece racecheck marlin 'MarlinGemm.CudaTwo*:MarlinGemm.CudaSeveral*:MarlinGemm.CudaAdds*:MarlinDequantize.Cuda*:MarlinGemmCuda.StagesThatComeRound*:MarlinGemmCuda.OutputsThatRepeat*' 2
piece racecheck gram 'GramLoss.Cuda*'
piece racecheck few-experts 'FewExperts.Cuda*' 4
piece racecheck mixtures 'DecodeMixture.Cuda*' 8
piece racecheck other-ops '*Cuda*:-*Attention.*:DecodeLayers.*:DecodeMixture.*:FewExperts.*:Marlin*:ExecCuda*:Gemm.*:Matmul.*:Fp8Gemm.*:Int8Gemm.*:FewRows.*:Choose*:RoundFp4.*:Refine.*:'"$memcheck_alone" 4
piece memcheck all '*:-*_cpu' 14
piece initcheck ops '*Cuda*:*_cuda:-ExecCuda*:DecodeLayers.*:*Gemm*:Matmul.*:FewRows.CudaSeveral*:FewRows.CudaSmall*:FewRows.CudaANorm*:FewRows.CudaUnrounded*:Choose*.CudaPlain*:Choose*.CudaThe*:Choose*.CudaZeros*:Choose*.CudaAn*:Choose*.CudaNegative*:Choose*.CudaSearched*:'"$memcheck_alone" 4
wait

for p in "${pieces[@]}"; do
  read -r tool name shards <<<"$p"
  files=() status=0 longest=0 cut=""
  for ((shard = 0; shard < shards; ++shard)); do
    files+=("$logs/$tool-$name-$shard.log")
    read -r code took <"$logs/$tool-$name-$shard.status"
    [ "$took" -gt "$longest" ] && longest=$took
    [ "$code" -eq 124 ] && cut=", cut off after $seconds s"
    # What cuBLAS and cuSOLVER do among themselves racecheck does not follow; what counts is ours.
    if [ "$code" -eq 9 ] && [ "$tool" = racecheck ] && ! grep -q '^\[  FAILED' "${files[-1]}"; then code=0; fi
    [ "$code" -eq 0 ] || status=$code
  done
  if [ "$tool" = racecheck ]; then
    found=$(grep -h 'Race reported' "${files[@]}" | grep -cvE 'nvjet|cutlass|cublas|cusolver|gemv|gemm_?SN|trsm|potr')
    [ "$found" -eq 0 ] || status=9
    what="$found hazards in our kernels"
  else
    found=$(grep -hoE 'ERROR SUMMARY: [0-9]+' "${files[@]}" | awk '{n += $3} END {if (NR) print n}')
    what="${found:-no count of} errors"
  fi
  [ "$(passed "${files[@]}")" -gt 0 ] || status=1  # a filter that no test answers to checks nothing
  note "compute-sanitizer $tool, $name" "$what; $(passed "${files[@]}") tests passed under it, $(failed "${files[@]}") failed$cut ($longest s)"
  [ "$status" -eq 0 ] || failures=$((failures + 1))
done

build/bin/runner bench --ops --device cuda --json "$logs/ops.json" >"$logs/ops.txt" 2>&1 || failures=$((failures + 1))

{
  echo "# GPU check"
  echo
  echo "Written by \`scripts/gpu_check.sh\` on $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1), CUDA $(nvcc --version | grep -oE 'release [0-9.]+' | cut -d' ' -f2), $(date -u +%Y-%m-%d), kernels of \`$(git log -1 --format=%h -- kernels 2>/dev/null || echo "${FEWBIT_COMMIT:-unknown}")\`, tree at \`$(git describe --always --dirty 2>/dev/null || echo "${FEWBIT_COMMIT:-unknown}")\`."
  echo
  echo "| check | result |"
  echo "|---|---|"
  printf '%s\n' "${rows[@]}"
  echo
  for tool in racecheck memcheck initcheck; do
    [[ " $checkers " == *" $tool "* ]] || printf '%s was left out of this run.\n\n' "$tool"
  done
  echo "racecheck runs a build with \`-DFEWBIT_RACECHECK=ON\`, in which all lanes of a warp arrive at a barrier where in the shipped one a"
  echo "lane arrives for its warp; products that are cuBLAS's alone (\`Gemm\`, \`Matmul\`) and \`ExecCuda\` are not under it."
  echo
  echo "## Kernels (\`runner bench --ops\`: cold weights, random data, medians)"
  echo
  echo '```'
  cat "$logs/ops.txt"
  echo '```'
} >docs/gpu-check.md
cp docs/gpu-check.md "$logs/"
[ $failures -eq 0 ]
