"""Reads a .gguf file with gguf-py and with llama.cpp; run by gguf_check.py inside its virtual environment.

  gguf_worker.py checksums FILE              CRC-32 of every tensor as gguf-py decodes it, under the model's own names
  gguf_worker.py perplexity FILE TEXT CONTEXT WINDOWS IDS    llama.cpp; writes the windows' ids to IDS (safetensors);
                                              a TEXT that is a safetensors file holds the windows, as input_ids
  gguf_worker.py quantize FILE OUT FTYPE      llama.cpp's own quantizer; FTYPE is its number of the mix, 0 for float32
  gguf_worker.py rewrite FILE OUT TYPE        gguf-py's reader, quantizer and writer; TYPE is the name of a block type

Each prints one JSON object. FEWBIT_LIBLLAMA names llama.cpp's library.
"""
import ctypes
import json
import os
import struct
import sys
import zlib

import numpy as np

# --- gguf-py ------------------------------------------------------------------------------------------------------

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


# What the architectures call differently: a class of its own for llama with experts.
GEMMA = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm"}
MIXTRAL = {"ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
           "ffn_up_exps": "block_sparse_moe.experts.{}.w3", "ffn_down_exps": "block_sparse_moe.experts.{}.w2"}
OTHER_NAMES = {
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "qwen3moe": {"ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.{}.gate_proj", "ffn_up_exps": "mlp.experts.{}.up_proj",
                 "ffn_down_exps": "mlp.experts.{}.down_proj"},
    "llama": MIXTRAL,
}


def model_name(arch, name):
    """The model's own name; of stacked experts with a place for the number."""
    if name in ENDS:
        return ENDS[name]
    _, layer, part, suffix = name.split(".")
    own = OTHER_NAMES.get(arch, {}).get(part) or NAMES[part]
    return f"model.layers.{layer}.{own}.{suffix}"


def unpaired(values, heads):
    """Rows of a llama's q and k from neighbouring pairs back to halves of a head."""
    rows, rest = values.shape[0], values.shape[1:]
    half = rows // heads // 2
    return values.reshape(heads, half, 2, *rest).swapaxes(1, 2).reshape(rows, *rest)


def checksums(path):
    from gguf import GGUFReader, quants

    reader = GGUFReader(path)
    number = lambda key: int(reader.fields[key].parts[reader.fields[key].data[0]][0])
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    heads = {"attn_q": "head_count", "attn_k": "head_count_kv"}
    sums = {}
    for t in reader.tensors:
        if t.name.startswith(("rope_freqs.", "rope_factors_")):
            continue
        values = quants.dequantize(t.data, t.tensor_type).reshape([int(d) for d in t.shape[::-1]])
        part = t.name.split(".")[2] if t.name.startswith("blk.") else ""
        if arch == "llama" and part in heads:
            values = unpaired(values, number(f"llama.attention.{heads[part]}"))
        values = np.asarray(values, dtype=np.float32)
        if arch.startswith("gemma") and "norm" in t.name:
            values = values - np.float32(1)
        name = model_name(arch, t.name)
        for i, part in enumerate(values if "{}" in name else [values]):
            sums[name.format(i)] = f"{zlib.crc32(np.ascontiguousarray(part, dtype='<f4').tobytes()):08x}"
    return sums


def rewrite(path, out, kind):
    """Every key and tensor of FILE again, matrices of the blocks as gguf-py quantizes them to `kind`."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

    reader, wanted = GGUFReader(path), GGMLQuantizationType[kind.upper()]
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        sub = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub)
    for t in reader.tensors:
        values = quants.dequantize(t.data, t.tensor_type).reshape([int(d) for d in t.shape[::-1]])
        blocks = t.name.startswith("blk.") and values.ndim >= 2 and "ffn_gate_inp" not in t.name
        data = quants.quantize(values, wanted) if blocks else np.ascontiguousarray(values, dtype=np.float32)
        writer.add_tensor(t.name, data, raw_dtype=wanted if blocks else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"bytes": os.path.getsize(out)}


# --- llama.cpp ----------------------------------------------------------------------------------------------------


class Params(ctypes.Structure):
    """Settings structs of llama.h travel in memory, so that a larger block of bytes may stand for them."""

    _fields_ = [("words", ctypes.c_uint32 * 256)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def library():
    """llama.cpp's C interface."""
    return ctypes.CDLL(os.environ["FEWBIT_LIBLLAMA"])


def quantize(path, out, ftype):
    lib = library()
    lib.llama_model_quantize_default_params.restype = Params
    lib.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Params)]
    lib.llama_model_quantize.restype = ctypes.c_uint32
    silence = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    lib.llama_log_set(silence, None)
    settings = lib.llama_model_quantize_default_params()
    settings.words[1] = ftype  # behind nthread
    settings.words[4] |= 1  # allow_requantize, a bool: FILE may hold blocks
    if lib.llama_model_quantize(path.encode(), out.encode(), ctypes.byref(settings)) != 0:
        raise SystemExit(f"llama.cpp does not quantize {path}")
    return {"bytes": os.path.getsize(out)}


class Llama:
    """A model behind llama.cpp's C interface."""

    def __init__(self, path, context):
        self.lib = lib = library()
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        for name, result, arguments in [
            ("llama_log_set", None, [pointer, pointer]),
            ("llama_model_default_params", Params, []),
            ("llama_context_default_params", Params, []),
            ("llama_model_load_from_file", pointer, [text, Params]),
            ("llama_init_from_model", pointer, [pointer, Params]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_vocab_n_tokens", ctypes.c_int32, [pointer]),
            ("llama_vocab_bos", ctypes.c_int32, [pointer]),
            ("llama_vocab_get_add_bos", ctypes.c_bool, [pointer]),
            ("llama_tokenize", ctypes.c_int32, [pointer, text, ctypes.c_int32, pointer, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]),
            ("llama_batch_init", Batch, [ctypes.c_int32] * 3),
            ("llama_set_n_threads", None, [pointer, ctypes.c_int32, ctypes.c_int32]),
            ("llama_get_memory", pointer, [pointer]),
            ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
            ("llama_decode", ctypes.c_int32, [pointer, Batch]),
            ("llama_get_logits", ctypes.POINTER(ctypes.c_float), [pointer]),
        ]:
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self.silence = ctypes.CFUNCTYPE(None, ctypes.c_int, text, pointer)(lambda *_: None)
        lib.llama_log_set(ctypes.cast(self.silence, pointer), None)
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        settings = lib.llama_context_default_params()
        if list(settings.words[:3]) != [512, 2048, 512]:  # n_ctx, n_batch, n_ubatch
            raise SystemExit("llama_context_params has another layout than expected")
        settings.words[0] = context
        self.context = lib.llama_init_from_model(self.model, settings)
        if not self.context:
            raise SystemExit(f"llama.cpp makes no context for {path}")
        lib.llama_set_n_threads(self.context, 1, 1)  # its threads spin while they wait
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.tokens = lib.llama_vocab_n_tokens(self.vocab)
        self.bos = lib.llama_vocab_bos(self.vocab)
        self.adds_bos = lib.llama_vocab_get_add_bos(self.vocab)
        self.batch = lib.llama_batch_init(context, 0, 1)

    def tokenize(self, text):
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = self.lib.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, True)
        return list(ids[:count])

    def losses(self, ids):
        """-log p of ids[1:], each given those before it."""
        for i, token in enumerate(ids):
            self.batch.token[i], self.batch.pos[i] = token, i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, 0, 1
        self.batch.n_tokens = len(ids)
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        if self.lib.llama_decode(self.context, self.batch) != 0:
            raise SystemExit("llama_decode failed")
        logits = np.ctypeslib.as_array(self.lib.llama_get_logits(self.context), (len(ids), self.tokens))[:-1].astype(np.float64)
        top = logits.max(axis=1)
        total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
        return total - logits[np.arange(len(ids) - 1), ids[1:]]


def write_ids(path, windows):
    data = np.asarray(windows, dtype="<i4")
    header = json.dumps({"input_ids": {"dtype": "I32", "shape": list(data.shape), "data_offsets": [0, data.nbytes]}})
    header += " " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header.encode() + data.tobytes())


def read_ids(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    entry = header["input_ids"]
    begin, end = entry["data_offsets"]
    return np.frombuffer(data[begin:end], dtype="<i4").reshape(entry["shape"]).tolist()


def perplexity(path, text, context, windows, ids_path):
    """llama.cpp's protocol: windows without overlap, BOS in place of each first token, the second half scored; and
    the mean over all predicted tokens of the same windows."""
    llama, ids = Llama(path, context), []
    if text.endswith(".safetensors"):
        cut = read_ids(text)
    else:
        with open(text, encoding="utf-8") as f:
            ids = llama.tokenize(f.read())
        cut = [ids[i : i + context] for i in range(0, len(ids) - context + 1, context)][:windows]
        if llama.adds_bos:
            cut = [[llama.bos] + w[1:] for w in cut]
    write_ids(ids_path, cut)
    losses = [llama.losses(w) for w in cut]
    scored = np.concatenate([l[len(w) // 2:] for l, w in zip(losses, cut)])
    own = float(np.exp(scored.mean()))
    return {
        "tokens": ids[:1024],
        "plain": float(np.exp(np.mean(np.concatenate(losses)))),
        "own": own,
        "own_stderr": own * float(np.sqrt(scored.var() / (len(scored) - 1))),
    }


def main():
    command, path = sys.argv[1:3]
    if command == "checksums":
        result = checksums(path)
    elif command == "rewrite":
        result = rewrite(path, sys.argv[3], sys.argv[4])
    elif command == "quantize":
        result = quantize(path, sys.argv[3], int(sys.argv[4]))
    else:
        text, context, windows, ids = sys.argv[3:]
        result = perplexity(path, text, int(context), int(windows), ids)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
