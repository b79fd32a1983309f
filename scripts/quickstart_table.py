#!/usr/bin/env python3
"""Prints the quick start's table, in Markdown, from the JSON files of its runs.

  quickstart_table.py FOLDER METHOD…

FOLDER holds report.json (`evaluate report` of all methods against bf16), and of each METHOD METHOD.quantize.json and
METHOD.bench.json; of bf16 there is bf16.bench.json.
"""
import json
import math
import re
import sys


def load(path):
    with open(path) as f:
        return json.load(f)


def weights_of(report):
    """What the linears are made of: "int4", "int3-int6", "W8A8 int8", "W8A8 FP8"."""
    words = {word for linear in report["linears"] for word in linear["recipe"].split()}
    kinds = sorted(word for word in words if re.fullmatch(r"int[2-8]|fp8", word))
    name = kinds[0] if len(kinds) == 1 else f"{kinds[0]}-{kinds[-1]}"
    return f"W8A8 {name.replace('fp8', 'FP8')}" if "acts=token" in words else name


def row(method, weights, bits, size, ratio, kl, bench):
    step = f"{bench['ms_per_token']['p50']:.3f} ms"
    return f"| {method} | {weights} | {bits:.4g} | {size / 2**20:.2f} MiB | {ratio} | {kl} | {step} |"


def main(folder, methods):
    compare = load(f"{folder}/report.json")
    distances = {entry["model"]: entry for entry in compare["models"]}
    bf16_bench = load(f"{folder}/bf16.bench.json")
    print(f"demo model (4.2 M parameters), {compare['windows']} windows of {compare['context']} tokens of "
          f"{compare['data']}, "
          f"{compare['dtype']} arithmetic, {bf16_bench['device']}; bf16's own perplexity there is "
          f"{compare['base']['perplexity']:.2f} ± {compare['base']['stderr']:.2f}\n")
    print("| method | weights | bits | size | perplexity / bf16's | KL to bf16, nats | median step |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for method in methods:
        report, distance = load(f"{folder}/{method}.quantize.json"), distances[method]
        ratio = math.exp(distance["ln_ratio"])
        kl = distance["kl"]
        if not rows:
            rows.append(row("bf16", "bf16", 16, report["source_bytes"], "1", "0", bf16_bench))
        rows.append(row(method, weights_of(report), report["bits_per_weight"], report["out_bytes"],
                        f"{ratio:.4f} ± {ratio * distance['ln_ratio_stderr']:.4f}",
                        f"{kl['mean']:.5f} ± {kl['stderr']:.5f}", load(f"{folder}/{method}.bench.json")))
    print("\n".join(rows))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
