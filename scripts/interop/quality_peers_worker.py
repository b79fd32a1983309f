"""Quantizes a model by a tool of other people, in the tool's own environment: METHOD BITS MODEL IDS OUT.

IDS is a .safetensors file whose input_ids [n, t] are the calibration. Groups of 128, symmetric but for AWQ, the head left as it is.
"""
import os
import sys


def llmcompressor(method, bits, model, ids, out):
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32", device_map="cpu")
    rows = Dataset.from_dict({"input_ids": ids.tolist(), "attention_mask": [[1] * ids.shape[1]] * len(ids)})
    target = {"ignore": ["lm_head"], "targets": ["Linear"]}
    recipe = [GPTQModifier(scheme=f"W{bits}A16", **target)]
    if method == "awq":
        if not torch.cuda.is_available():  # its search pins memory, which asks for a GPU's driver and changes no number
            torch.Tensor.pin_memory = lambda tensor, *_: tensor
        recipe = [AWQModifier(), QuantizationModifier(scheme="W4A16_ASYM", **target)]
    oneshot(model=loaded, dataset=rows, recipe=recipe, max_seq_length=ids.shape[1], num_calibration_samples=len(ids))
    loaded.save_pretrained(out, save_compressed=True)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)


def gptqmodel(bits, model, ids, out):
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # by itself it has one for every two cores, and its loader asks for two
    from gptqmodel import GPTQModel, QuantizeConfig
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in ids.tolist()]
    loaded = GPTQModel.load(model, QuantizeConfig(bits=int(bits), group_size=128, sym=True), device="cpu")
    loaded.quantize(rows, batch_size=1)
    loaded.save(out)


def autoround(best, bits, model, ids, out):
    import torch
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32", device_map="cpu")
    batches = [{"input_ids": torch.tensor([row])} for row in ids.tolist()]
    more = {"iters": 1000} if best else {}
    tool = AutoRound(loaded, AutoTokenizer.from_pretrained(model), bits=int(bits), group_size=128, sym=True, dataset=batches,
                     seqlen=ids.shape[1], nsamples=len(ids), device_map="cpu", **more)
    tool.quantize_and_save(out, format="auto_gptq")


def main():
    method, bits, model, file, out = sys.argv[1:]
    from safetensors.torch import load_file
    ids = load_file(file)["input_ids"].long()
    if method.startswith("llmcompressor-"):
        llmcompressor(method.split("-")[1], bits, model, ids, out)
    elif method == "gptqmodel":
        gptqmodel(bits, model, ids, out)
    else:
        autoround(method.endswith("-best"), bits, model, ids, out)


if __name__ == "__main__":
    main()
