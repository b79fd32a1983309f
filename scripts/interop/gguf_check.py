#!/usr/bin/env python3
"""GGUF files of ours in the hands of gguf-py and llama.cpp.

Writes models in several types and has gguf-py and llama.cpp quantize them to others; for each file compares every tensor's decoded
values with gguf-py's, the tokens and the perplexity with llama.cpp's, and prints a Markdown table. gguf-py lives in a virtual
environment of its own, llama.cpp is built from source, both of frozen versions; one that cannot be had is a row SKIPPED with the
reason. Exit code 1 when a row fails.

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
PACKAGES = venvs.TOOLS["gguf"][0] + [venvs.LLAMA_CPP]
TYPES = ["f32", "f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "mxfp4"]
# The reverse: gguf-py and llama.cpp quantize our f16 file, we read the result. llama.cpp's own numbers of the mixes.
BY_GGUF_PY = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]
THEIRS = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k_m": 12, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18,
          "iq4_nl": 25, "iq4_xs": 30}
# Of a random model less will do, and llama.cpp turns the file to float32 before it runs it: its products of blocks round the
# inputs too, which moves a random model by more than the limit.
RANDOM_TYPES = ["f32", "q8_0", "q4_0", "q4_k", "q6_k"]
RANDOM_THEIRS = ["q4_0", "q8_0", "q2_k", "q4_k_m", "q5_k_m", "iq4_xs"]
CONTEXT = 512
TOLERANCE = 0.005  # of perplexity
HEADER = ["model", "type", "tensors as gguf-py", "tokens as llama.cpp", "perplexity", "llama.cpp", "difference",
          "llama.cpp's own protocol", "result"]


def run(command):
    env = {**os.environ, "FEWBIT_LIBLLAMA": venvs.libllama()} if WORKER in command else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise RuntimeError(f"{os.path.basename(command[0])}: {lines[-1]}")
    return done.stdout


def written(programs, model, kind, work):
    """A .gguf file of the model in this type."""
    out = os.path.join(work, f"{os.path.basename(model.rstrip('/'))}-{kind}")
    if kind in ("f32", "f16"):
        file = out + ".gguf"
        if os.path.exists(file):
            os.remove(file)
        run([os.path.join(programs, "convert"), "to", f"gguf:{kind}", model, file])
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
    if text.endswith(".safetensors"):
        return sums, perplexity, []
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
    ids, theirs = os.path.join(work, "windows.safetensors"), file
    random = text.endswith(".safetensors")
    decoded = json.loads(run([python, WORKER, "checksums", file]))
    if random and kind != "f32":
        theirs = os.path.join(work, "dequantized.gguf")
        run([python, WORKER, "quantize", file, theirs, "0"])
    llama = json.loads(run([python, WORKER, "perplexity", theirs, text, str(CONTEXT), str(windows), ids]))
    sums, perplexity, tokens = our_figures(programs, file, ids, text, work)
    equal = sum(sums.get(t) == crc for t, crc in decoded.items())
    # The excerpt ends inside a word; its last tokens may differ from those of the whole text.
    common = max(0, min(len(tokens), len(llama["tokens"])) - 4)
    same = tokens[:common] == llama["tokens"][:common] and (random or common > 0)
    difference = perplexity / llama["plain"] - 1
    good = equal == len(decoded) == len(sums) and same and abs(difference) <= TOLERANCE
    shown = "none" if random else f"{common} equal" if same else "DIFFER"
    return [name, kind, f"{equal} of {len(decoded)}", shown, f"{perplexity:.4f}", f"{llama['plain']:.4f}",
            f"{100 * difference:+.4f} %", f"{llama['own']:.4f}", "ok" if good else "FAILED"]


def rows(models, windows, work, programs):
    """Rows of HEADER, as strings. `models`: a name, a folder, and a text or, of a random model without a tokenizer, token ids."""
    os.makedirs(work, exist_ok=True)
    try:
        python = venvs.python_of("gguf")
        venvs.libllama()
    except (RuntimeError, OSError) as e:
        return [["all", "all", "", "", "", "", "", "", f"SKIPPED: {e}"]]
    table = []
    for name, model, text in models:
        for kind, file in files_of(python, programs, model, text.endswith(".safetensors"), work):
            try:
                table.append(row(python, programs, name, kind, file(), text, windows, work))
            except (RuntimeError, OSError) as e:
                table.append([name, kind, "", "", "", "", "", "", f"FAILED: {e}"])
            print("  ".join(table[-1]), file=sys.stderr, flush=True)
    return table


def files_of(python, programs, model, random, work):
    """Pairs of a row's type and the call that makes its file."""
    for kind in RANDOM_TYPES if random else TYPES:
        yield kind, lambda kind=kind: written(programs, model, kind, work)
    for kind in [] if random else BY_GGUF_PY:
        yield f"{kind} by gguf-py", lambda kind=kind: rewritten(python, programs, model, kind, work)
    for kind in RANDOM_THEIRS if random else THEIRS:
        yield f"{kind} by llama.cpp", lambda kind=kind: theirs(python, programs, model, kind, work)


def rewritten(python, programs, model, kind, work):
    source, out = written(programs, model, "f16", work), os.path.join(work, f"gguf-py-{kind}.gguf")
    run([python, WORKER, "rewrite", source, out, kind])
    return out


def theirs(python, programs, model, kind, work):
    source, out = written(programs, model, "f16", work), os.path.join(work, f"theirs-{kind}.gguf")
    run([python, WORKER, "quantize", source, out, str(THEIRS[kind])])
    return out


def builtin_text(work):
    folder, path = os.path.join(ROOT, "calib_data", "evaluation", "english"), os.path.join(work, "builtin.txt")
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
    parser.add_argument("--text", help="a text, or token ids (.safetensors); left out: the built-in text")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "interop-gguf"))
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    a = parser.parse_args()
    models = [m.split("=", 1) for m in a.model] or [("demo", os.path.join(ROOT, "calib_data", "demo-model"))]
    os.makedirs(a.work, exist_ok=True)
    text = a.text or builtin_text(a.work)
    table = rows([(name, folder, text) for name, folder in models], a.windows, a.work, a.bin)
    print(f"Versions: {', '.join(PACKAGES)}; context {CONTEXT}, {a.windows} windows.\n")
    print(markdown(table))
    return 1 if any("FAILED" in r[-1] for r in table) else 0


if __name__ == "__main__":
    sys.exit(main())
