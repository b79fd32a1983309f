#!/usr/bin/env python3
"""Checks every #include edge against the layer table of docs/architecture.md."""
import os
import re
import sys

# layer -> layers it may include
ALLOWED = {
    "src/core": [],
    "kernels": ["src/core"],
    "formats": ["src/core"],
    "src/model": ["src/core", "formats"],
    "src/text": ["src/core", "formats"],
    "src/run": ["src/core", "src/model", "kernels", "formats"],
    "src/calib": ["src/core", "src/model", "src/run", "kernels"],
    "src/quant": ["src/core", "src/model", "src/text", "src/run", "src/calib", "kernels", "formats"],
    "src/eval": ["src/core", "src/model", "src/text", "src/run", "kernels", "formats"],
    "tools": None,  # everything
}
CUDA_HOMES = re.compile(r"kernels/.*(_cuda\.cu|\.cuh|exec_cuda\.h)$")


def layer_of(path):
    for layer in sorted(ALLOWED, key=len, reverse=True):
        if path.startswith(layer + "/"):
            return layer
    return None


def complaints_of(path, text):
    layer = layer_of(path)
    allowed = ALLOWED[layer]
    for number, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if not m:
            continue
        included = m.group(1)
        target = layer_of(included)
        if target and allowed is not None and target != layer and target not in allowed:
            yield f"{path}:{number}: {layer} may not include {target} ({included})"
        if re.match(r"cuda|cublas|cusolver|nvtx", included) and not CUDA_HOMES.match(path):
            yield f"{path}:{number}: CUDA headers belong in kernels/*_cuda.cu, *.cuh and exec_cuda.h ({included})"
        if included.startswith("nlohmann") and path.endswith(".h"):
            yield f"{path}:{number}: JSON belongs in .cpp files ({included})"


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    bad = []
    for top in ("src", "kernels", "formats", "tools"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            for name in files:
                if not name.endswith((".h", ".cpp", ".cu", ".cuh")):
                    continue
                path = os.path.relpath(os.path.join(folder, name), root)
                with open(os.path.join(root, path), encoding="utf-8") as f:
                    bad += complaints_of(path, f.read())
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
