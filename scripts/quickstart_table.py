#!/usr/bin/env python3
"""Prints the quick start's table from the JSON files of its runs."""
import json
import os
import re
import sys


def load(path):
    with open(path) as f:
        return json.load(f)


def weights_of(report):
    """What the linears are made of: "int4", "int3-int6", "W8A8 int8", "W8A8 fp8"."""
    words = {word for linear in report["linears"] for word in linear["recipe"].split()}
    kinds = sorted(word for word in words if re.fullmatch(r"int[2-8]|fp8", word))
    name = kinds[0] if len(kinds) == 1 else f"{kinds[0]}-{kinds[-1]}"
    return f"W8A8 {name}" if "acts=token" in words else name


def main(folder):
    device = load(f"{folder}/bf16.bench.json")["device"]
    print(f"demo model (4.2 M parameters), built-in text, windows of 512, bf16 arithmetic, {device}")
    print(f"{'method':<11} {'weights':<9} {'bits':>6} {'size':>9} {'perplexity':>18} {'tokens/s':>9} {'ms/token':>9}")
    for name in ("bf16", "rtn", "gptq", "awq", "awq+gptq", "auto", "smoothquant", "fp8"):
        ppl = load(f"{folder}/{name}.perplexity.json")
        bench = load(f"{folder}/{name}.bench.json")
        quantize = f"{folder}/{name}.quantize.json"
        if os.path.exists(quantize):
            report = load(quantize)
            bits, size = report["bits_per_weight"], report["out_bytes"]
            weights = weights_of(report)
        else:
            weights, bits, size = "bf16", 16, load(f"{folder}/rtn.quantize.json")["source_bytes"]
        value = f"{ppl['perplexity']:.3f} ± {ppl['stderr']:.3f}"
        print(f"{name:<11} {weights:<9} {bits:>6.3f} {size / 2**20:>5.2f} MiB {value:>18} "
              f"{bench['tokens_per_s']:>9.1f} {bench['ms_per_token']['mean']:>9.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
