#!/usr/bin/env python3
"""The protocols of `evaluate` computed with transformers, beside what `evaluate` says. Run by scripts/interop/evaluate.

Perplexity must agree to 0.05 %, the figures of `compare` (bf16 weights against int4 rounding) to 1 %. float32 on the CPU.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

MODELS = ("demo-llama-4m", "lab-qwen3-10m")
PERPLEXITY_LIMIT, COMPARE_LIMIT = 5e-4, 1e-2


def fewbit(args, program, *words):
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        command = [os.path.join(args.bin, program), *words, "--json", f.name, "--quiet"]
        r = subprocess.run(command, capture_output=True, text=True)
        if r.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{r.stderr}")
        return json.load(open(f.name))


def token_losses(model, windows):
    """-ln p of the tokens 1 … n-1 of every window, and the log-probabilities that they come from."""
    with torch.no_grad():
        for window in windows:
            logp = torch.log_softmax(model(window[None]).logits[0, :-1].float(), dim=-1)
            yield -logp.gather(1, window[1:, None])[:, 0].double(), logp


def stream(tokenizer, text):
    return torch.tensor([tokenizer.bos_token_id] + tokenizer(text, add_special_tokens=False)["input_ids"])


def windows_of(ids, length, limit):
    n = min(len(ids) // length, limit)
    return list(ids[: n * length].view(n, length))


def gptq_rows(path):
    """The rows of the data set: lines with their newlines, blank ones empty."""
    with open(path, encoding="utf-8", newline="\n") as f:
        return [line if line.strip() else "" for line in f]


def perplexity_gptq(model, tokenizer, path, length, limit):
    windows = windows_of(stream(tokenizer, "\n\n".join(gptq_rows(path))), length, limit)
    means = [losses.mean().item() for losses, _ in token_losses(model, windows)]
    return math.exp(sum(means) / len(means)), None


def perplexity_llama_cpp(model, tokenizer, path, length, limit):
    with open(path, encoding="utf-8", newline="") as f:
        windows = windows_of(stream(tokenizer, f.read()), length, limit)
    scored = []
    for window in windows:
        window = window.clone()
        window[0] = tokenizer.bos_token_id
        scored += [losses[length // 2:] for losses, _ in token_losses(model, [window])]
    nll = torch.cat(scored)
    mean = nll.mean().item()
    variance = (nll * nll).mean().item() - mean * mean
    return math.exp(mean), math.exp(mean) * math.sqrt(variance / (len(nll) - 1))


def unpack_gptq(words, name, out, inn):
    """GPTQ words of 4 bits (the first version: zeros stored minus one) -> [out, in] float32."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    get = lambda part: words[f"{name}.{part}"].numpy()
    codes = ((get("qweight").view(np.uint32)[:, None, :] >> shifts[None, :, None]) & 15).reshape(inn, out)
    zeros = ((get("qzeros").view(np.uint32)[:, :, None] >> shifts) & 15).reshape(-1, out) + 1
    scales = get("scales").astype(np.float32)
    group = inn // scales.shape[0]
    values = (codes.astype(np.float32) - np.repeat(zeros, group, 0).astype(np.float32)) * np.repeat(scales, group, 0)
    return torch.from_numpy(values.T.copy())


def compare(model, other, windows):
    kl, top1, top5, base, mine = [], [], [], [], []
    for (lb, pb), (lm, pm) in zip(token_losses(model, windows), token_losses(other, windows)):
        pb, pm = pb.double(), pm.double()
        kl.append((pb.exp() * (pb - pm)).sum(-1))
        tb, tm = pb.topk(5).indices, pm.topk(5).indices
        top1.append((tb[:, 0] == tm[:, 0]).double())
        top5.append((tb[:, :, None] == tm[:, None, :]).any(-1).double().mean(-1))
        base.append(lb)
        mine.append(lm)
    kl = torch.cat(kl)
    differences = torch.stack([m.mean() - b.mean() for b, m in zip(base, mine)])
    ranked = kl.sort().values
    at = lambda p: ranked[max(0, math.ceil(p * len(ranked)) - 1)].item()
    return {"perplexity": torch.cat(mine).mean().exp().item(), "ln_ratio": differences.mean().item(),
            "ln_ratio_stderr": (differences.std() / math.sqrt(len(differences))).item(), "kl.mean": kl.mean().item(),
            "kl.p50": at(0.5), "kl.p90": at(0.9), "kl.p99": at(0.99), "kl.max": kl.max().item(),
            "top1": torch.cat(top1).mean().item(), "top5": torch.cat(top5).mean().item()}


class Table:
    def __init__(self):
        self.failed = 0

    def row(self, model, what, found, expected, limit):
        error = abs(found / expected - 1)
        self.failed += not error <= limit
        print(f"{model:<16} {what:<36} {found:>14.6f} {expected:>14.6f} {100 * error:>9.4f} %  "
              f"{'ok' if error <= limit else 'FAILED'}", flush=True)


def check_model(args, name, table):
    folder = os.path.join(args.reference, "models", name)
    text = os.path.join(args.reference, "corpus", "wikitext2_test_raw.txt")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for protocol, function, length in (("gptq", perplexity_gptq, 2048), ("llama.cpp", perplexity_llama_cpp, 512)):
        expected, error = function(model, tokenizer, text, length, args.windows)
        found = fewbit(args, "evaluate", "perplexity", folder, "--data", text, "--protocol", protocol, "--dtype", "float32",
                       "--max-windows", str(args.windows), "--device", args.device)
        table.row(name, f"{protocol} perplexity", found["perplexity"], expected, PERPLEXITY_LIMIT)
        if error is not None:
            table.row(name, f"{protocol} +-", found["stderr"], error, PERPLEXITY_LIMIT * 10)
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "rtn4")
        fewbit(args, "quantize", "rtn int4 g128 effort=reference format=gptq", folder, out, "--device", args.device)
        other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        if json.load(open(os.path.join(out, "config.json")))["quantization_config"]["checkpoint_format"] != "gptq":
            sys.exit(f"{out}: expected the first version of the GPTQ format")
        words = load_file(os.path.join(out, "model.safetensors"))
        for path, module in other.named_modules():
            if path + ".qweight" in words:
                module.weight.data = unpack_gptq(words, path, module.out_features, module.in_features)
        with open(text, encoding="utf-8", newline="") as f:
            windows = windows_of(stream(tokenizer, f.read()), 1024, args.compare_windows)
        expected = compare(model, other, windows)
        found = fewbit(args, "evaluate", "compare", folder, out, "--data", text, "--context", "1024", "--dtype", "float32",
                       "--max-windows", str(args.compare_windows), "--device", args.device)["models"][0]
        for key, value in expected.items():
            mine = found["kl"][key[3:]] if key.startswith("kl.") else found[key]
            table.row(name, f"compare rtn int4: {key}", mine, value, COMPARE_LIMIT)


def main():
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--reference", default=os.path.join(here, "..", "shared"), help="folder with models/ and corpus/")
    p.add_argument("--bin", default=os.path.join(here, "build", "bin"))
    p.add_argument("--device", default="auto")
    p.add_argument("--windows", type=int, default=40, help="at most so many windows for perplexity")
    p.add_argument("--compare-windows", type=int, default=16)
    args = p.parse_args()
    print(f"{'model':<16} {'figure':<36} {'evaluate':>14} {'transformers':>14} {'difference':>11}")
    table = Table()
    for name in MODELS:
        check_model(args, name, table)
    print(f"{table.failed} failed")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
