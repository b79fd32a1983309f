#!/usr/bin/env python3
"""GGUF files of ours in the hands of gguf-py and llama.cpp.

Writes models in several types and has gguf-py and llama.cpp quantize them to others; for each file compares every tensor's decoded
values with gguf-py's, the tokens and the perplexity with llama.cpp's, and prints a Markdown table. The tools live in a virtual environment of their own with frozen
versions; one that cannot be installed is a row SKIPPED with the reason. Exit code 1 when a row fails.

  scripts/interop/gguf_check.py [--model NAME=DIR ...] [--text FILE] [--windows N] [--work DIR] [--bin DIR]
"""
import argparse
import json
import os
import subprocess
import sys

import venvs

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WORKER = os.path.join(HERE, "gguf_worker.py")
PACKAGES = venvs.TOOLS["gguf"][0]  # xllamacpp is llama.cpp b11549 built as a wheel
TYPES = ["f16", "q8_0", "q4_0", "q4_k", "q6_k"]
# The reverse: llama.cpp quantizes our f16 file, we read the result. Its own numbers of the mixes.
BY_GGUF_PY = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]
THEIRS = {"q4_1": 3, "q5_1": 9, "q2_k": 10, "q3_k_m": 12, "q4_k_m": 15, "q5_k_m": 17, "iq4_nl": 25, "iq4_xs": 30}
CONTEXT = 512
TOLERANCE = 0.005  # of perplexity
HEADER = ["model", "type", "tensors as gguf-py", "tokens as llama.cpp", "perplexity", "llama.cpp", "difference",
          "llama.cpp's own protocol", "result"]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise RuntimeError(f"{os.path.basename(command[0])}: {lines[-1]}")
    return done.stdout


def written(programs, model, kind, work):
    """A .gguf file of the model in this type."""
    out = os.path.join(work, f"{os.path.basename(model.rstrip('/'))}-{kind}")
    if kind == "f16":
        file = out + ".gguf"
        if os.path.exists(file):
            os.remove(file)
        run([os.path.join(programs, "convert"), "to", "gguf:f16", model, file])
        return file
    run([os.path.join(programs, "quantize"), "rtn", model, out, "--format", f"gguf:{kind}", "--device", "cpu", "--force"])
    return os.path.join(out, "model.gguf")


def our_figures(programs, file, ids, text, work):
    out = os.path.join(work, "ours.json")
    common = ["--device", "cpu", "--json", out]
    run([os.path.join(programs, "convert"), "inspect", file, "--checksums", *common])
    with open(out, encoding="utf-8") as f:
        sums = json.load(f)["checksums"]
    run([os.path.join(programs, "evaluate"), "perplexity", file, "--data", ids, "--dtype", "float32", *common])
    with open(out, encoding="utf-8") as f:
        perplexity = json.load(f)["perplexity"]
    head = os.path.join(work, "head.txt")
    with open(text, encoding="utf-8") as f:
        excerpt = f.read(2000)
    with open(head, "w", encoding="utf-8") as f:
        f.write(excerpt)
    run([os.path.join(programs, "runner"), "generate", file, "--prompt-file", head, "--max-tokens", "1", *common])
    with open(out, encoding="utf-8") as f:
        tokens = json.load(f)["prompt_ids"]
    return sums, perplexity, tokens


def row(python, programs, name, kind, file, text, windows, work):
    ids = os.path.join(work, "windows.safetensors")
    decoded = json.loads(run([python, WORKER, "checksums", file]))
    llama = json.loads(run([python, WORKER, "perplexity", file, text, str(CONTEXT), str(windows), ids]))
    sums, perplexity, tokens = our_figures(programs, file, ids, text, work)
    equal = sum(sums.get(t) == crc for t, crc in decoded.items())
    # The excerpt ends inside a word; its last tokens may differ from those of the whole text.
    common = min(len(tokens), len(llama["tokens"])) - 4
    same = tokens[:common] == llama["tokens"][:common]
    difference = perplexity / llama["plain"] - 1
    good = equal == len(decoded) == len(sums) and same and abs(difference) <= TOLERANCE
    return [name, kind, f"{equal} of {len(decoded)}", f"{common} equal" if same else "DIFFER", f"{perplexity:.4f}",
            f"{llama['plain']:.4f}", f"{100 * difference:+.3f} %", f"{llama['own']:.4f}", "ok" if good else "FAILED"]


def rows(models, text, windows, work, programs):
    """Rows of HEADER, as strings. `models`: pairs of a name and a folder."""
    os.makedirs(work, exist_ok=True)
    try:
        python = venvs.python_of("gguf")
    except (RuntimeError, OSError) as e:
        return [["all", "all", "", "", "", "", "", "", f"SKIPPED: {e}"]]
    table = []
    for name, model in models:
        for kind, file in files_of(python, programs, model, work):
            try:
                table.append(row(python, programs, name, kind, file(), text, windows, work))
            except (RuntimeError, OSError) as e:
                reason = str(e)
                at = reason.find("SKIPPED")
                table.append([name, kind, "", "", "", "", "", "", reason[at:] if at >= 0 else f"FAILED: {reason}"])
    return table


def files_of(python, programs, model, work):
    """Pairs of a row's type and the call that makes its file."""
    for kind in TYPES:
        yield kind, lambda kind=kind: written(programs, model, kind, work)
    for kind in BY_GGUF_PY:
        yield f"{kind} by gguf-py", lambda kind=kind: rewritten(python, programs, model, kind, work)
    for kind, number in THEIRS.items():
        yield f"{kind} by llama.cpp", lambda kind=kind, number=number: theirs(python, programs, model, kind, number, work)


def rewritten(python, programs, model, kind, work):
    source, out = written(programs, model, "f16", work), os.path.join(work, f"gguf-py-{kind}.gguf")
    run([python, WORKER, "rewrite", source, out, kind])
    return out


def theirs(python, programs, model, kind, number, work):
    source, out = written(programs, model, "f16", work), os.path.join(work, f"theirs-{kind}.gguf")
    run([python, WORKER, "quantize", source, out, str(number)])
    return out


def builtin_text(work):
    folder, path = os.path.join(ROOT, "calib_data", "evaluation"), os.path.join(work, "builtin.txt")
    with open(path, "w", encoding="utf-8") as out:
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                out.write(f.read())
    return path


def markdown(table):
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in table])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], help="NAME=DIR; left out: the demo model")
    parser.add_argument("--text", help="left out: the built-in evaluation text")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "interop-gguf"))
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    a = parser.parse_args()
    models = [m.split("=", 1) for m in a.model] or [("demo", os.path.join(ROOT, "calib_data", "demo-model"))]
    os.makedirs(a.work, exist_ok=True)
    table = rows(models, a.text or builtin_text(a.work), a.windows, a.work, a.bin)
    print(f"Versions: {', '.join(PACKAGES)}; context {CONTEXT}, {a.windows} windows.\n")
    print(markdown(table))
    return 1 if any("FAILED" in r[-1] for r in table) else 0


if __name__ == "__main__":
    sys.exit(main())
