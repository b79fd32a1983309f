#!/usr/bin/env python3
"""Prints one run of scripts/bench_quantize: totals, phases, what lay behind them, peaks beside the plan.

  bench_quantize_table.py SHAPE RECIPE REPORT.json [BUSY]

BUSY holds the GPU's utilisation in percent, a line for every tenth of a second of the run.
"""
import json
import os
import sys


def main(shape, recipe, report, busy=None):
    with open(report) as f:
        r = json.load(f)
    r = r.get("report", r)
    phases = sorted(r["phases"].items(), key=lambda p: -p[1])
    words = ", ".join(f"{name} {s:.2f}" for name, s in phases if s >= 0.005)
    hidden = ", ".join(f"{name} {s:.2f}" for name, s in sorted(r["hidden_seconds"].items()) if s >= 0.005)
    gib = 2.0**30
    beside = f"hidden: {hidden or 'nothing'}; waited for it {r['idle_seconds']:.2f}"
    print(f"**{shape}, {recipe}**: {r['seconds']:.2f} s ({words}; {beside})")
    line = f"  GPU peak {r['peak_gpu_bytes'] / gib:.2f} GiB, planned {r['planned_gpu_bytes'] / gib:.2f}"
    line += f"; host {r['peak_host_bytes'] / gib:.2f}, planned {r['planned_host_bytes'] / gib:.2f}"
    if r["planned_total_seconds"]:
        line += f"; planned time {r['planned_total_seconds']:.1f} s"
    if busy and os.path.exists(busy):
        with open(busy) as f:
            shares = [float(x) for x in f.read().split() if x.strip().isdigit()]
        if shares:
            line += f"; GPU busy {sum(shares) / len(shares):.0f} % of {len(shares) / 10:.1f} s"
    print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
