"""What scripts/interop/foreign compares: prints a row for each case and fails where a value differs by more than its limit."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


def quantized(model, folder, **config):
    m = AutoModelForCausalLM.from_pretrained(model, quantization_config=BitsAndBytesConfig(**config), dtype=torch.bfloat16, device_map="cpu")
    m.save_pretrained(folder)
    return m


def weights_of(model):
    """Name of every quantized linear and its values as the tool has them."""
    import bitsandbytes as bnb

    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            yield name + ".weight", bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        elif isinstance(module, bnb.nn.Linear8bitLt):
            scb = module.weight.SCB if getattr(module.weight, "SCB", None) is not None else module.state.SCB
            yield name + ".weight", module.weight.data.float() * (scb.float() / 127).unsqueeze(1)


def difference(ours, theirs):
    a, b = ours.double(), theirs.double()
    return float((a - b).norm() / b.norm())


def check_codes(bin_dir, model, work, name, limit, **config):
    folder, dense = os.path.join(work, name), os.path.join(work, name + "-f32")
    tool = quantized(model, folder, **config)
    run(os.path.join(bin_dir, "convert"), "to", "f32", folder, dense, "--quiet")
    ours = load_file(os.path.join(dense, "model.safetensors"))
    worst, count = 0.0, 0
    for weight, values in weights_of(tool):
        worst = max(worst, difference(ours[weight], values.float()))
        count += 1
    row(f"bitsandbytes {name}", count, worst, limit)


def check_lora(bin_dir, model, work, name, **config):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tuned = get_peft_model(base, LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False, **config))
    adapter, merged, out = (os.path.join(work, f"{name}-{x}") for x in ("adapter", "merged", "out"))
    tuned.save_pretrained(adapter)
    tuned.merge_and_unload().to(torch.bfloat16).save_pretrained(merged)
    run(os.path.join(bin_dir, "quantize"), "rtn", model, out, "--lora", adapter, "--keep", "*q_proj", "--keep", "*v_proj", "--keep", "*down_proj", "--quiet")
    ours, theirs = load_file(os.path.join(out, "model.safetensors")), load_file(os.path.join(merged, "model.safetensors"))
    names = [n for n in theirs if n.endswith(("q_proj.weight", "v_proj.weight", "down_proj.weight"))]
    row(f"PEFT {name}", len(names), max(difference(ours[n].float(), theirs[n].float()) for n in names), 1e-4)


def check_written(bin_dir, model, work, name, tensors, metadata, method, values, limit):
    """A folder with these tensors, as `method` names itself; ours against the tool's values."""
    folder, dense = os.path.join(work, name), os.path.join(work, name + "-f32")
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = json.load(open(os.path.join(model, "config.json"), encoding="utf-8"))
    config["quantization_config"] = {"quant_method": method}
    json.dump(config, open(os.path.join(folder, "config.json"), "w", encoding="utf-8"))
    save_file({n: t.contiguous().clone() for n, t in tensors.items()}, os.path.join(folder, "model.safetensors"), metadata)
    run(os.path.join(bin_dir, "convert"), "to", "f32", folder, dense, "--quiet")
    ours = load_file(os.path.join(dense, "model.safetensors"))
    row(f"{method} {name}", len(values), max(difference(ours[n], v.float()) for n, v in values.items()), limit)


def dense_model(model):
    """The model, and its tensors by name as a file holds them: a tied head once."""
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    tensors = {n: t for n, t in m.state_dict().items() if not (n == "lm_head.weight" and m.config.tie_word_embeddings)}
    return m, tensors


def check_hqq(bin_dir, model, work, nbits, group, axis):
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    m, tensors = dense_model(model)
    values = {}
    for name, module in m.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        layer = HQQLinear(module, BaseQuantizeConfig(nbits=nbits, group_size=group, axis=axis), compute_dtype=torch.bfloat16, device="cpu",
                          del_orig=False)
        layer.encoded_state_dict = True
        del tensors[name + ".weight"]
        tensors.update({f"{name}.{key}": t for key, t in layer.state_dict().items() if t is not None})
        values[name + ".weight"] = layer.dequantize()
    check_written(bin_dir, model, work, f"{nbits}-bit-g{group}-axis{axis}", tensors, {"format": "pt"}, "hqq", values, 1e-6)


def check_torchao(bin_dir, model, work, name, config):
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quantize_

    m, _ = dense_model(model)
    quantize_(m, config, lambda module, fqn: isinstance(module, torch.nn.Linear) and fqn != "lm_head")
    state = {n: t.data for n, t in m.state_dict().items() if not (n == "lm_head.weight" and m.config.tie_word_embeddings)}
    tensors, metadata = flatten_tensor_state_dict(state)
    values = {n: t.dequantize() for n, t in state.items() if type(t) is not torch.Tensor}
    check_written(bin_dir, model, work, name, tensors, metadata, "torchao", values, 1e-6)


failed = []


def row(what, count, worst, limit):
    ok = count > 0 and worst <= limit
    print(f"| {what} | {count} linears | {worst:.2e} | {'ok' if ok else 'FAILED'} |", flush=True)
    if not ok:
        failed.append(what)


def main():
    bin_dir, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as work:
        for kind in ("nf4", "fp4"):
            for double in (False, True):
                check_codes(bin_dir, model, work, kind + ("-double" if double else ""), 1e-6, load_in_4bit=True,
                            bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=double, bnb_4bit_compute_dtype=torch.bfloat16)
        check_codes(bin_dir, model, work, "int8", 1e-6, load_in_8bit=True)
        for nbits, group, axis in ((8, 64, 1), (4, 64, 1), (4, 64, 0), (3, 64, 1), (2, 32, 1), (1, 32, 0)):
            check_hqq(bin_dir, model, work, nbits, group, axis)
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup

        check_torchao(bin_dir, model, work, "int8", Int8WeightOnlyConfig())
        check_torchao(bin_dir, model, work, "float8", Float8WeightOnlyConfig())
        check_torchao(bin_dir, model, work, "intx-int4-g32", IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
        check_lora(bin_dir, model, work, "lora", r=8, lora_alpha=16)
        check_lora(bin_dir, model, work, "rslora", r=8, lora_alpha=16, use_rslora=True)
        check_lora(bin_dir, model, work, "patterns", r=8, lora_alpha=16, rank_pattern={"v_proj": 4}, alpha_pattern={"down_proj": 40})
    if failed:
        raise SystemExit("FAILED: " + ", ".join(failed))


if __name__ == "__main__":
    main()
