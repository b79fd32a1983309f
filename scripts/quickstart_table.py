#!/usr/bin/env python3
"""Prints the quick start's table from the JSON files of its runs."""
import json
import os
import sys


def load(path):
    with open(path) as f:
        return json.load(f)


def main(folder):
    device = load(f"{folder}/bf16.bench.json")["device"]
    print(f"demo model (4.2 M parameters), built-in text, windows of 512, bf16 arithmetic, {device}")
    print(f"{'method':<6} {'bits':>6} {'size':>9} {'perplexity':>18} {'tokens/s':>9} {'ms/token':>9}")
    for name in ("bf16", "rtn", "gptq"):
        ppl = load(f"{folder}/{name}.perplexity.json")
        bench = load(f"{folder}/{name}.bench.json")
        quantize = f"{folder}/{name}.quantize.json"
        if os.path.exists(quantize):
            report = load(quantize)
            bits, size = report["bits_per_weight"], report["out_bytes"]
        else:
            bits, size = 16, load(f"{folder}/rtn.quantize.json")["source_bytes"]
        value = f"{ppl['perplexity']:.3f} ± {ppl['stderr']:.3f}"
        print(f"{name:<6} {bits:>6.3f} {size / 2**20:>5.2f} MiB {value:>18} "
              f"{bench['tokens_per_s']:>9.1f} {bench['ms_per_token']['mean']:>9.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
