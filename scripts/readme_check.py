#!/usr/bin/env python3
"""Holds the README's figures against what its commands print.

  scripts/readme_check.py [--bin build/bin] [--methods rtn,gptq,smoothquant,fp8]

Runs the quick start for some of its methods (the searches of the others take most of its time) and compares the table:
weights, bits and size must be equal, ratio and KL within two standard errors, the errors themselves within a factor of
two: codes, and with them a few tokens that weigh heavily, differ from one CPU's instructions to another's. The
perplexity of bf16 and what bare `evaluate perplexity` prints are compared too. Times never are.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TIMES = "median step"


def rows_of(text):
    """The quick start's table: {method: {column: cell}}."""
    rows, head = {}, None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [c.strip() for c in line.strip("|").split("|")]
        if cells[0] == "method":
            head = cells
        elif head and not cells[0].startswith("---"):
            rows[cells[0]] = dict(zip(head, cells))
    return rows


def figure(cell):
    """ "1.0985 ± 0.0144" -> (1.0985, 0.0144); nothing where there is no such figure."""
    found = re.fullmatch(r"([\d.]+) ± ([\d.]+)", cell)
    return (float(found[1]), float(found[2])) if found else None


def agree(a, b):
    """Figures with their errors, of two machines: within two of the first one's, the errors within a factor of two."""
    return abs(a[0] - b[0]) <= 2 * a[1] and max(a[1], b[1]) <= 2 * min(a[1], b[1])


def differences(stated, found):
    """What the rows of `found` say otherwise than `stated`, one line each."""
    out = []
    for method, row in found.items():
        if method not in stated:
            out.append(f"{method}: the README has no such row")
            continue
        for column, cell in row.items():
            said = stated[method].get(column, "")
            a, b = figure(said), figure(cell)
            same = said == cell if a is None or b is None else agree(a, b)
            if column != TIMES and not same:
                out.append(f"{method}, {column}: the README says {said}, found {cell}")
    return out


def perplexity_differences(text, patterns, found):
    """`found` = [(value, error), …] against the README's sentences."""
    out = []
    for pattern, (value, error) in zip(patterns, found):
        said = re.search(pattern, text.replace("\n", " "))
        if not said:
            out.append(f"the README has no sentence like: {pattern}")
        elif not agree((value, error), (float(said[1]), float(said[2]))):
            out.append(f"bf16's perplexity: the README says {said[1]} ± {said[2]}, found {value:.2f} ± {error:.2f}")
    return out


SENTENCES = [
    r"bf16's own perplexity there is ([\d.]+) ± ([\d.]+)",
    r"`evaluate perplexity` prints ([\d.]+) ± ([\d.]+)",
]


def check_figures(text, programs, methods, work):
    subprocess.run(
        [
            os.path.join(ROOT, "scripts/quickstart"),
            "--bin",
            programs,
            "--methods",
            methods.replace(",", " "),
            "--keep",
            work,
        ],
        check=True,
        stdout=open(os.path.join(work, "table.md"), "w"),
        stderr=subprocess.DEVNULL,
    )
    with open(os.path.join(work, "table.md"), encoding="utf-8") as f:
        found = rows_of(f.read())
    if set(found) != {"bf16", *methods.split(",")}:
        return [f"the quick start printed rows of {', '.join(found)}; expected bf16 and {methods}"]
    with open(os.path.join(work, "report.json")) as f:
        base = json.load(f)["base"]
    bare = subprocess.run(
        [os.path.join(programs, "evaluate"), "perplexity", "--json", "-"], check=True, capture_output=True
    )
    bare = json.loads(bare.stdout)
    return differences(rows_of(text), found) + perplexity_differences(
        text, SENTENCES, [(base["perplexity"], base["stderr"]), (bare["perplexity"], bare["stderr"])]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"))
    parser.add_argument("--methods", default="rtn,gptq,smoothquant,fp8")
    parser.add_argument("--readme", default=os.path.join(ROOT, "README.md"))
    a = parser.parse_args()
    with open(a.readme, encoding="utf-8") as f:
        text = f.read()
    with tempfile.TemporaryDirectory() as work:
        problems = check_figures(text, a.bin, a.methods, work)
    for p in problems:
        print(f"README.md: {p}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
