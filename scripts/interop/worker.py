"""Loads and writes checkpoints with other people's tools; run by scripts/interop/run in a tool's environment.

Reads a list of jobs as JSON from standard input and prints a line "RESULT {json}" for each. A job names a function of
LOADERS (a checkpoint of ours, by their code: "perplexity", and where the job has "logits", a cache of `evaluate compare`, how far ours
are from theirs: "logits_error") or of WRITERS (a checkpoint of theirs at "out", and its "perplexity" by their code). A job that raises
becomes {"error": …}. Perplexity is over every token but a window's first, in float32.
"""
import contextlib
import importlib.util
import json
import math
import os
import shutil
import sys
import tempfile
import traceback
import types

import torch
from safetensors.torch import load_file, save_file


class NotLoaded(RuntimeError):
    """The tool does not load what it was given, and says so."""


def read_config(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def tensors_of(folder):
    state = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            state.update(load_file(os.path.join(folder, name)))
    return state


def perplexity(model, ids):
    """exp of the mean of -ln p over the tokens 1 … n-1 of every window; ids [n, t]."""
    model = model.eval()
    for p in model.parameters():  # float32 was asked for, but experts may come in the type of their scales
        if p.dtype == torch.float16:
            p.data = p.data.float()
    total, count = 0.0, 0
    with torch.no_grad():
        for window in ids.long():
            logp = torch.log_softmax(model(window[None]).logits[0, :-1].float(), dim=-1)
            losses = -logp.gather(1, window[1:, None])[:, 0].double()
            total += losses.sum().item()
            count += len(losses)
    return math.exp(total / count)


def logits_error(model, ids, cache):
    """||ours - theirs|| / ||theirs|| over all positions but a window's last; ours as `evaluate compare --base-cache` keeps them."""
    coded, off, size = tensors_of(cache), 0.0, 0.0
    with torch.no_grad():
        for i, window in enumerate(ids.long()):
            code, top, step = (coded[f"{name}.{i:06d}"].double() for name in ("code", "top", "step"))
            theirs = model(window[None]).logits[0, :-1].double()
            off += (top[:, None] - step[:, None] * code - theirs).square().sum().item()
            size += theirs.square().sum().item()
    return math.sqrt(off / size)


def pretrained(folder, dtype=torch.float32, **more):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    # A language model inside of a larger one has no class of its own there; it gets no pictures.
    around = "text_config" in read_config(folder) and read_config(folder)["architectures"][0].endswith("ForConditionalGeneration")
    auto = AutoModelForImageTextToText if around or "vision_config" in read_config(folder) else AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True, **more)
    missing = sorted(k for k in info["missing_keys"] if not k.startswith("lm_head"))
    if missing:
        raise NotLoaded(f"leaves {len(missing)} tensors of the model as they are initialised, {missing[0]} first")
    return model


@contextlib.contextmanager
def dense_model(base, values):
    """A model with the dense tensors of `base`, those in `values` (name without .weight -> [out, in]) in place of the base's."""
    with tempfile.TemporaryDirectory() as folder:
        config = read_config(base)
        config.pop("quantization_config", None)
        config["dtype"] = "float32"
        state = {name: t.float() for name, t in tensors_of(base).items()}
        for name, value in values.items():
            key = name + ".weight"
            if key not in state or state[key].shape != value.shape:
                raise ValueError(f"{key}: the tool makes {tuple(value.shape)} of it, the model has "
                                 f"{tuple(state[key].shape) if key in state else 'none'}")
            state[key] = value.float().contiguous()
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        yield pretrained(folder)


def modules_with(state, suffix):
    return sorted(name[: -len(suffix) - 1] for name in state if name.endswith("." + suffix))


def module_state(state, module):
    prefix = module + "."
    return {name[len(prefix):]: t for name, t in state.items() if name.startswith(prefix) and "." not in name[len(prefix):]}


# --- our checkpoints, their code ----------------------------------------------------------------------------------


def load_transformers(job):
    try:
        model = pretrained(job["checkpoint"])
        result = {"perplexity": perplexity(model, job["ids"])}
        if "logits" in job:
            result["logits_error"] = logits_error(model, job["ids"], job["logits"])
        return result
    except RuntimeError as e:
        if "same dtype" not in str(e):
            raise
        # compressed-tensors decompresses 4-bit floats to bf16 whatever the model's type is.
        return {"perplexity": perplexity(pretrained(job["checkpoint"], torch.bfloat16), job["ids"]), "dtype": "bf16"}


def load_transformers_gguf(job):
    folder, file = os.path.split(job["checkpoint"])
    return {"perplexity": perplexity(pretrained(folder, gguf_file=file), job["ids"])}


def ct_scheme_of(config, module):
    """The scheme of a module and its format, by compressed-tensors' own config class and matching."""
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.utils.match import is_match

    parsed = QuantizationConfig.model_validate({k: v for k, v in config.items() if k != "quant_method"})
    linear = torch.nn.Linear(1, 1)
    for scheme in parsed.config_groups.values():
        if any(is_match(module, linear, t) for t in scheme.targets):
            return scheme, scheme.format or parsed.format
    raise ValueError(f"{module}: no group of the config matches it")


def load_compressed_tensors(job):
    """Every linear through compressed-tensors' decompression, then a dense model."""
    from compressed_tensors.compressors import BaseCompressor

    state, config = tensors_of(job["checkpoint"]), read_config(job["checkpoint"])["quantization_config"]
    modules = modules_with(state, "weight_packed") or modules_with(state, "weight_scale")
    values = {}
    for module in modules:
        scheme, form = ct_scheme_of(config, module)
        compressor = BaseCompressor.get_value_from_registry(getattr(form, "value", form))
        parts = module_state(state, module)
        if parts["weight_scale"].is_floating_point():  # values come in the type of the scales: float32 shows the file, not a rounding
            parts["weight_scale"] = parts["weight_scale"].float()
        values[module] = compressor.decompress(parts, scheme)["weight"]
    with dense_model(job["base"], values) as model:
        return {"perplexity": perplexity(model, job["ids"])}


def package_without_init(name):
    """A package whose __init__ is left out: it imports models that current transformers no longer has."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    module = types.ModuleType(name)
    module.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = module


def awq_values(folder, config):
    package_without_init("awq")
    from awq.utils.packing_utils import dequantize_gemm

    state = tensors_of(folder)
    values = {}
    for module in modules_with(state, "qweight"):
        t = module_state(state, module)
        group = config["group_size"] if config["group_size"] > 0 else t["qweight"].shape[0]
        values[module] = dequantize_gemm(t["qweight"], t["qzeros"], t["scales"].float(), config["bits"], group).T
    return values


def load_autoawq(job):
    values = awq_values(job["checkpoint"], read_config(job["checkpoint"])["quantization_config"])
    with dense_model(job["base"], values) as model:
        return {"perplexity": perplexity(model, job["ids"])}


def gptq_values(folder):
    """Every linear through GPTQModel's own module: its buffers, its conversion of zero points, its dequantization."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module
    from gptqmodel.quantization import QuantizeConfig

    config = read_config(folder)["quantization_config"]
    form = config.get("checkpoint_format", config.get("format", "gptq"))
    state = tensors_of(folder)
    values = {}
    for module in modules_with(state, "qweight"):
        t = module_state(state, module)
        inputs, outputs = t["g_idx"].numel(), t["scales"].shape[1]
        layer = TorchLinear(bits=config["bits"], group_size=config["group_size"], sym=config["sym"], desc_act=config["desc_act"],
                            in_features=inputs, out_features=outputs, bias=False, pack_dtype=torch.int32, register_buffers=True)
        for name in ("qweight", "qzeros", "scales", "g_idx"):
            found, expected = t[name], getattr(layer, name)
            if found.shape != expected.shape:
                raise ValueError(f"{module}.{name}: the tool expects {tuple(expected.shape)}, the file has {tuple(found.shape)}")
            setattr(layer, name, found)
        if form == "gptq":
            convert_gptq_v1_to_v2_format_module(layer, bits=config["bits"], pack_dtype=torch.int32)
        layer.post_init()
        layer.scales = layer.scales.float()
        values[module] = layer.dequantize_weight().T
    return values


def load_gptqmodel(job):
    with dense_model(job["base"], gptq_values(job["checkpoint"])) as model:
        return {"perplexity": perplexity(model, job["ids"])}


# --- their checkpoints -------------------------------------------------------------------------------------------


def copy_beside(base, out):
    for name in os.listdir(base):
        if "tokenizer" in name or name == "generation_config.json":
            shutil.copy(os.path.join(base, name), out)


def write_compressed_tensors(job):
    """Plain rounding by compressed-tensors' own scales, compressor and config writer: job["scheme"] is one of its presets."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams
    from compressed_tensors.quantization.utils.helpers import generate_gparam

    model = pretrained(job["base"])
    scheme = preset_name_to_scheme(job["scheme"], ["Linear"])
    for key, value in job.get("weights", {}).items():
        setattr(scheme.weights, key, value)
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head", "re:.*mlp.gate$"]))
    for module in model.modules():
        args = getattr(getattr(module, "quantization_scheme", None), "weights", None)
        if args is None:
            continue
        w = module.weight.detach()
        if args.group_size:
            rows = w.unflatten(1, (-1, args.group_size))
            low, high = rows.amin(-1), rows.amax(-1)
        elif args.strategy == "channel":
            low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
        else:
            low, high = w.amin().reshape(1), w.amax().reshape(1)
        more = {}
        if args.strategy == "tensor_group":
            more["global_scale"] = generate_gparam(w.amin().reshape(1), w.amax().reshape(1))
            module.weight_global_scale.data = more["global_scale"]
        scale, zero = calculate_qparams(low, high, args, **more)
        module.weight_scale.data = scale.to(module.weight_scale.dtype).reshape(module.weight_scale.shape)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype).reshape(module.weight_zero_point.shape)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(job["out"])
    compressor.update_config(job["out"])
    copy_beside(job["base"], job["out"])
    # Their forward rounds the inputs of linears too; decompression alone does not.
    load = load_transformers if scheme.input_activations else load_compressed_tensors
    return load({**job, "checkpoint": job["out"]})


def write_autoawq(job):
    """AutoAWQ's packing of plain rounding: zero points, 4 bits."""
    package_without_init("awq")
    from awq.modules.linear.gemm import WQLinear_GEMM

    bits, group = 4, job["group_size"]
    state, out = tensors_of(job["base"]), {}
    linears = [n[: -len(".weight")] for n, t in state.items() if n.endswith("_proj.weight")]
    for name, t in state.items():
        if name[: -len(".weight")] not in linears:
            out[name] = t
    for name in linears:
        w = state[name + ".weight"].float()
        groups = w.reshape(w.shape[0], -1, group)
        low, high = groups.amin(-1), groups.amax(-1)
        scales = ((high - low).clamp(min=1e-5) / 15).half().float()
        zeros = (-torch.round(low / scales)).clamp(0, 15)
        codes = torch.clamp(torch.round(groups / scales[..., None]) + zeros[..., None], 0, 15)
        linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
        linear.weight.data = ((codes - zeros[..., None]) * scales[..., None]).reshape(w.shape)
        packed = WQLinear_GEMM.from_linear(linear, bits, group, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
        for part in ("qweight", "qzeros", "scales"):
            out[f"{name}.{part}"] = getattr(packed, part).contiguous()
    config = read_config(job["base"])
    config["quantization_config"] = {"quant_method": "awq", "bits": bits, "group_size": group, "zero_point": True, "version": "gemm",
                                     "modules_to_not_convert": None}
    os.makedirs(job["out"], exist_ok=True)
    save_file(out, os.path.join(job["out"], "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(job["out"], "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    copy_beside(job["base"], job["out"])
    return load_autoawq({**job, "checkpoint": job["out"]})


def write_longrope(job):
    """A random Phi-3 whose rotation has two tables, as Phi-4-mini's; scores are large, so that a wrong angle shows."""
    from transformers import Phi3Config, Phi3ForCausalLM

    torch.manual_seed(0)
    features = 24  # half of 0.75 * 64
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1 + 0.02 * i for i in range(features)], "long_factor": [1 + 0.1 * i * i for i in range(features)],
            "original_max_position_embeddings": job["original"]}
    config = Phi3Config(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                        vocab_size=384, max_position_embeddings=4 * job["original"], original_max_position_embeddings=job["original"],
                        rope_parameters=rope, initializer_range=0.15, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = Phi3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(job["out"])
    for path, windows in job["windows"].items():
        save_file({"input_ids": torch.randint(3, 384, windows, dtype=torch.int32)}, path)
    return {}


def write_gptqmodel(job):
    """GPTQModel's own quantization of the whole model on a few windows of the text."""
    from gptqmodel import GPTQModel
    from gptqmodel.quantization import QuantizeConfig

    config = QuantizeConfig(bits=job["bits"], group_size=job["group_size"], sym=job.get("sym", True),
                            desc_act=job.get("desc_act", False), **({"format": job["format"]} if "format" in job else {}))
    model = GPTQModel.load(job["base"], config, device="cpu")
    windows = [{"input_ids": w.tolist(), "attention_mask": [1] * len(w)} for w in job["ids"]]
    model.quantize(windows, batch_size=1)
    model.save(job["out"])
    return load_gptqmodel({**job, "checkpoint": job["out"]})


LOADERS = {"transformers": load_transformers, "transformers-gguf": load_transformers_gguf,
           "compressed-tensors": load_compressed_tensors, "autoawq": load_autoawq, "gptqmodel": load_gptqmodel}
WRITERS = {"longrope": write_longrope, "compressed-tensors": write_compressed_tensors, "autoawq": write_autoawq, "gptqmodel": write_gptqmodel}


def ids_of(job):
    if "text" not in job:
        return load_file(job["ids"])["input_ids"]
    from transformers import AutoTokenizer

    with open(job["text"], encoding="utf-8") as f:
        ids = AutoTokenizer.from_pretrained(job["base"])(f.read(), add_special_tokens=False)["input_ids"]
    length, windows = job["context"], job["windows"]
    ids = torch.tensor(ids[: length * windows], dtype=torch.int32).reshape(-1, length)
    save_file({"input_ids": ids}, job["ids"])
    return ids


def do(job):
    if job["what"] == "ids":
        return {"windows": len(ids_of(job))}
    table = LOADERS if job["what"] == "load" else WRITERS
    ids = {"ids": load_file(job["ids"])["input_ids"]} if "ids" in job else {}
    return table[job["tool"]]({**job, **ids})


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    for job in json.load(sys.stdin):
        try:
            with contextlib.redirect_stdout(sys.stderr):
                result = do(job)
        except NotLoaded as e:
            result = {"skipped": f"the tool {e}"}
        except Exception as e:  # a row of the table, whatever the tool raised
            line = next((l for l in str(e).splitlines() if l.strip()), "")
            result = {"error": f"{type(e).__name__}: {line[:240]}"}
            traceback.print_exc()
        print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
