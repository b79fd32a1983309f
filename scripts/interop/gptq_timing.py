#!/usr/bin/env python3
"""Times a plain GPTQ in PyTorch on the blocks of a Llama checkpoint: what a reader of the paper writes.

  gptq_timing.py MODEL [WINDOWS] [LENGTH]

MODEL is a folder of safetensors with input_ids in calibration.safetensors, as `convert synth --tokens N` leaves it. One
stream; a float32 Hessian for every linear (products in float32, no TF32), groups of 128 of 4 bits with scales by their
maximum, columns in blocks of 128, the inverse's Cholesky factor by torch.linalg (Frantar et al., 2022). Prints seconds
of each block: forward with the sums, factor, columns. Nothing is written.
"""
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open

GROUP, BLOCK, DAMP = 128, 128, 0.01


class Model:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.files = {}
        for file in sorted(folder.glob("model*.safetensors")):
            reader = safe_open(str(file), "pt", device="cuda")
            self.files.update({name: reader for name in reader.keys()})

    def get(self, name):
        return self.files[name].get_tensor(name).to(torch.bfloat16)


def rope_tables(config, length):
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = config.get("rope_theta") or config.get("rope_parameters", {}).get("rope_theta", 10000.0)
    angles = torch.arange(length, device="cuda")[:, None] * theta ** (-torch.arange(0, dim, 2, device="cuda") / dim)
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Block:
    ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")

    def __init__(self, model, layer):
        self.config, prefix = model.config, f"model.layers.{layer}."
        self.w = {n: model.get(f"{prefix}{'self_attn' if n in self.ATTENTION else 'mlp'}.{n}.weight")
                  for n in self.ATTENTION + ("gate_proj", "up_proj", "down_proj")}
        self.norms = [model.get(f"{prefix}{n}.weight") for n in ("input_layernorm", "post_attention_layernorm")]

    def linear(self, name, x, see):
        see(name, x)
        return F.linear(x, self.w[name])

    def __call__(self, x, tables, see=lambda name, x: None):
        c, (t, _) = self.config, x.shape
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        h = F.rms_norm(x, (x.shape[-1],), self.norms[0], c["rms_norm_eps"])
        q, k, v = (self.linear(n, h, see).view(t, -1, c["hidden_size"] // heads).transpose(0, 1)
                   for n in self.ATTENTION[:3])
        q, k = turned(q, *tables), turned(k, *tables)
        k, v = (y.repeat_interleave(heads // kv, 0) for y in (k, v))
        o = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + self.linear("o_proj", o.transpose(0, 1).reshape(t, -1), see)
        h = F.rms_norm(x, (x.shape[-1],), self.norms[1], c["rms_norm_eps"])
        act = F.silu(self.linear("gate_proj", h, see)) * self.linear("up_proj", h, see)
        return x + self.linear("down_proj", act, see)


def quantize(weight, hessian):
    """Codes of `weight` as their values, by error feedback under the inverse of the damped Hessian."""
    w, n = weight.float(), weight.shape[1]
    hessian.diagonal().add_(DAMP * hessian.diagonal().mean())
    begin = time.time()
    lower = torch.linalg.cholesky(hessian)
    u = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    torch.cuda.synchronize()
    factor, begin = time.time() - begin, time.time()
    for at in range(0, n, BLOCK):
        end = min(n, at + BLOCK)
        errors = torch.zeros_like(w[:, at:end])
        for j in range(at, end):
            if j % GROUP == 0:
                scale = w[:, j : j + GROUP].abs().amax(1).clamp(min=1e-9) / 7.5
            value = ((w[:, j] / scale).round().clamp(-8, 7)) * scale
            error = (w[:, j] - value) / u[j, j]
            w[:, j:end] -= error[:, None] * u[j, j:end]
            w[:, j] = value
            errors[:, j - at] = error
        w[:, end:] -= errors @ u[at:end, end:]
    torch.cuda.synchronize()
    return w.to(weight.dtype), factor, time.time() - begin


def main(folder, windows=128, length=2048):
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Model(Path(folder))
    with safe_open(str(Path(folder) / "calibration.safetensors"), "pt") as f:
        ids = f.get_tensor("input_ids").flatten()[: windows * length].view(windows, length).long().cuda()
    table = model.get("model.embed_tokens.weight")
    states = [table[row] for row in ids]
    tables = rope_tables(model.config, length)
    with torch.no_grad():
        for layer in range(model.config["num_hidden_layers"]):
            torch.cuda.synchronize()
            start, spent = time.time(), {"forward": 0.0, "factor": 0.0, "columns": 0.0}
            block = Block(model, layer)
            sums = {n: torch.zeros(w.shape[1], w.shape[1], device="cuda") for n, w in block.w.items()}

            def see(name, x):
                x = x.float()
                sums[name].addmm_(x.T, x)

            for x in states:
                block(x, tables, see)
            torch.cuda.synchronize()
            spent["forward"] = time.time() - start
            for name in list(block.w):
                block.w[name], factor, columns = quantize(block.w[name], sums.pop(name))
                spent["factor"] += factor
                spent["columns"] += columns
            states = [block(x, tables) for x in states]
            torch.cuda.synchronize()
            parts = ", ".join(f"{n} {s:.2f}" for n, s in spent.items())
            print(f"block {layer}: {time.time() - start:.2f} s ({parts})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
