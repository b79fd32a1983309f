#!/usr/bin/env bash
# On a machine with two GPUs or more: ranks on GPUs, with tensors from GPU to GPU (NCCL) and through host memory,
# against one process. Needs no MPI. Prints a line for each check and ends with 1 where one failed.
#   scripts/gpu_ranks_check.sh [LOGS]
#   FEWBIT_PREBUILT=DIR   a folder with bin/, lib/fewbit/ and tests/{rank,tp}_member; else build/ is made here
#   FEWBIT_NCCL_DIR=DIR   where include/nccl.h and lib/libnccl.so.2 are; else CUDA's folder, then python3's nvidia.nccl
#   FEWBIT_RANKS_MODEL=DIR  a model to quantize besides the demo model (default: two blocks of synthetic llama-1b)
set -uo pipefail
cd "$(dirname "$0")/.."
logs=$(mkdir -p "${1:-build/gpu-ranks-check}" && cd "${1:-build/gpu-ranks-check}" && pwd)
export PATH="$PATH:/usr/local/cuda/bin"
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | wc -l)
[ "$gpus" -ge 2 ] || { echo "gpu_ranks_check: needs two GPUs, found $gpus" >&2; exit 1; }

# NCCL of a Python package lies beside the interpreter's other packages; the loader has to be told.
nccl=${FEWBIT_NCCL_DIR:-}
[ -n "$nccl" ] || [ -e /usr/local/cuda/include/nccl.h ] ||
  nccl=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)
found=$(ls /usr/local/cuda/lib*/libnccl.so.2 2>/dev/null | head -n 1)
[ -n "$nccl$found" ] || nccl=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)
export LD_LIBRARY_PATH="${nccl:+$nccl/lib:}${found:+$(dirname "$found"):}${LD_LIBRARY_PATH:-}"

built=$PWD/build
if [ -n "${FEWBIT_PREBUILT:-}" ]; then
  built=$(cd "$FEWBIT_PREBUILT" && pwd)
else
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
  targets=80; [ "$capability" = 9.0 ] && targets=90a
  {
    scripts/setup test
    cmake -S . -B build -G Ninja -DFEWBIT_CUDA=ON "-DFEWBIT_CUDA_TARGETS=$targets" ${nccl:+"-DFEWBIT_NCCL_DIR=$nccl"} &&
      cmake --build build --target quantize evaluate runner convert rank_member tp_member -j "$(nproc)"
  } >"$logs/build.log" 2>&1 || { tail -n 30 "$logs/build.log"; exit 1; }
fi
quantize=$built/bin/quantize evaluate=$built/bin/evaluate runner=$built/bin/runner convert=$built/bin/convert
[ -e "$built/lib/fewbit/fewbit_nccl.so" ] || { echo "gpu_ranks_check: the build has no NCCL" >&2; exit 1; }

demo=calib_data/demo-model failures=0
result() {  # result NAME OK-or-not [TEXT]
  echo "$1: $([ "$2" = 0 ] && echo ok || echo FAILED)${3:+; $3}"
  [ "$2" = 0 ] || failures=$((failures + 1))
}
two() { timeout -k 5 240 scripts/local_ranks 2 "$@"; }

for nccl_on in 1 0; do
  by=$([ $nccl_on = 1 ] && echo NCCL || echo "host memory")
  FEWBIT_NCCL=$nccl_on two "$built/tests/rank_member" gpus >"$logs/collectives-$nccl_on.log" 2>&1
  code=$?
  [ "$(grep -c "tensors by $by" "$logs/collectives-$nccl_on.log")" = 2 ] || code=1
  ways=$(grep -hoE '(tensors|rows) by .*' "$logs/collectives-$nccl_on.log" | sort -u | paste -sd, -)
  result "collective calls by $by" $code "$ways"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=${FEWBIT_RANKS_MODEL:-$work/model} ids=()
if [ ! -e "$model" ]; then
  "$convert" synth --preset llama-1b --layers 2 --tokens 65536 "$model" >"$logs/synth.log" 2>&1 || exit 1
  ids=(--calib "$model/calibration.safetensors" --samples 32)
fi
bytes() { cat "$1"/*.safetensors 2>/dev/null | sha256sum | cut -c 1-16; }
value() { python3 -c "import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])" "$1" "$2" 2>/dev/null; }
took() { value "$work/$1/quant_report.json" seconds; }
compare() {  # compare NAME ARGUMENTS…: the bytes of one process and of two ranks
  local name=$1 one
  shift
  "$quantize" "$@" "$work/one" --device cuda:0 --quiet >"$logs/$name-1.log" 2>&1 ||
    { result "$name, one GPU" 1; return; }
  one=$(bytes "$work/one")
  for nccl_on in 1 0; do
    FEWBIT_NCCL=$nccl_on two "$quantize" "$@" "$work/two" --device cuda --quiet >"$logs/$name-2-$nccl_on.log" 2>&1
    local code=$? here
    here=$(bytes "$work/two")
    [ "$here" = "$one" ] || code=1
    result "$name, two GPUs, $([ $nccl_on = 1 ] && echo NCCL || echo host memory)" $code \
      "$one and $here; $(took one) and $(took two) s"
    rm -rf "$work/two" "$work/two.partial"
  done
  rm -rf "$work/one"
}
compare demo-gptq gptq "$demo"
compare demo-fp8 'gptq fp8' "$demo" --kv-cache fp8
compare demo-awq awq+gptq "$demo" --effort quick
compare model-gptq gptq "$model" --effort quick "${ids[@]}"

for nccl_on in 1 0; do
  by=$([ $nccl_on = 1 ] && echo NCCL || echo "host memory")
  FEWBIT_NCCL=$nccl_on two "$runner" bench "$model" --tp 2 --device cuda --tokens 32 --json "$work/bench.json" \
    >"$logs/bench-$nccl_on.log" 2>&1
  code=$?
  result "runner bench --tp 2, $by" $code "$(python3 -c "
import json; j = json.load(open('$work/bench.json')); j = j[0] if isinstance(j, list) else j
print({k: v for k, v in j.items() if k in ('ms_per_token', 'all_reduce_ms')})" 2>/dev/null)"
done
for format in marlin fp8; do
  "$convert" synth --preset llama-1b --layers 3 --format $format "$work/steps" --quiet >"$logs/synth-$format.log" 2>&1
  two "$built/tests/tp_member" steps "$work/steps" >"$logs/steps-$format.log" 2>&1
  result "decode steps of $format, two GPUs and one" $? "$(tail -n 1 "$logs/steps-$format.log")"
  rm -rf "$work/steps"
done
"$evaluate" perplexity "$demo" --device cuda:0 --json "$work/alone.json" >"$logs/perplexity-1.log" 2>&1
two "$evaluate" perplexity "$demo" --tp 2 --device cuda --json "$work/shared.json" >"$logs/perplexity-2.log" 2>&1
alone=$(value "$work/alone.json" perplexity) shared=$(value "$work/shared.json" perplexity)
python3 -c "import sys; a, b = map(float, sys.argv[1:]); sys.exit(abs(a / b - 1) > 5e-3)" "${alone:-0}" "${shared:-1}"
result "evaluate perplexity --tp 2" $? "$shared, one GPU $alone"
[ "$failures" -eq 0 ]
