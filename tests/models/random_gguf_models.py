"""Random models of transformers as GGUF files, computed by ours.

    python random_gguf_models.py LOGITS PROGRAM [COUNT [SEED]]

LOGITS is print_logits.cpp, and PROGRAM torch-attention. The files are written by
the package gguf, with the changes of llama.cpp's converter, in F32, F16, BF16 and
quantised types. What transformers computes with the values of the blocks is
compared, and so are the tokens of texts, if onnxruntime-genai is there.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf import TokenType
from safetensors.numpy import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers
from torch import Tensor

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
TYPES = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gpt2"]
TYPES += ["bert"]
PLAIN = [Type.F32, Type.F16, Type.BF16]
BY_32 = [Type.Q8_0, Type.Q4_0, Type.Q5_1]
BY_256 = [Type.Q4_K, Type.Q6_K]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LETTERS = (
    "abzAZ019 \t'’.,!?—éßøñжΩ中文日本語한글🙂👩‍👧\u00a0\u2028\u200b٣४Ⅷ½´`_-<>|/"
    "e\u0301o\u0308\u1100\u1161\u212b"
)


def name_in_gguf(name: str, architecture: str) -> str | None:
    path, suffix = name.rsplit(".", 1)
    for start in ("model.", "transformer.", "encoder."):
        path = path.removeprefix(start)
    parts = path.split(".")
    layer = ""
    if parts[0] in ("layers", "layer", "h"):
        layer = f"blk.{parts[1]}."
        path = ".".join(parts[2:])
    after = architecture in ("gemma2", "gemma3")
    names = {
        **NAMES,
        "post_attention_layernorm": "post_attention_norm" if after else "ffn_norm",
    }
    return f"{layer}{names[path]}.{suffix}" if path in names else None


class Changed:
    """A change that the converter makes to a tensor, and its inverse."""

    def __init__(self, name: str, architecture: str, config) -> None:
        self.is_transposed = architecture == "gpt2" and ".c_" in name
        self.is_transposed &= name.endswith("weight")
        self.has_one = architecture.startswith("gemma") and "norm" in name
        self.heads = 0
        if architecture == "llama" and "q_proj" in name:
            self.heads = config.num_attention_heads
        if architecture == "llama" and "k_proj" in name:
            self.heads = config.num_key_value_heads

    def done(self, x: Tensor) -> Tensor:
        if self.heads:
            split = x.reshape(self.heads, 2, x.shape[0] // self.heads // 2, -1)
            x = split.transpose(1, 2).reshape(x.shape)
        x = x.t() if self.is_transposed else x
        return x + 1 if self.has_one else x

    def undone(self, x: Tensor) -> Tensor:
        if self.heads:
            split = x.reshape(self.heads, x.shape[0] // self.heads // 2, 2, -1)
            x = split.transpose(1, 2).reshape(x.shape)
        x = x.t() if self.is_transposed else x
        return x - 1 if self.has_one else x


def random_blocks(draw: random.Random, shape: tuple, of: Type) -> np.ndarray:
    """Bytes of blocks that the package cannot make, with small scales."""
    size, bytes_of = gguf.GGML_QUANT_SIZES[of]
    blocks = int(np.prod(shape)) // size
    raw = np.frombuffer(draw.randbytes(blocks * bytes_of), np.uint8)
    raw = raw.reshape(blocks, bytes_of).copy()
    scale = np.array([draw.uniform(1e-5, 2e-4) for _ in range(blocks)], np.float16)
    places = (0, 2) if of == Type.Q4_K else (bytes_of - 2,)
    for at in places:
        raw[:, at : at + 2] = scale.view(np.uint8).reshape(blocks, 2)
    return raw.reshape(*shape[:-1], -1)


def stored(draw: random.Random, x: Tensor, is_norm: bool) -> tuple[np.ndarray, Type]:
    """Returns the bytes of a tensor in a drawn type."""
    values = x.detach().float().contiguous().numpy()
    choices = list(PLAIN)
    if x.dim() < 2 or is_norm:
        choices = [Type.F32]
    elif x.shape[-1] % 32 == 0:
        choices += BY_32
        if x.shape[-1] % 256 == 0:
            choices += BY_256
    of = draw.choice(choices)
    if of in BY_256:
        return random_blocks(draw, values.shape, of), of
    return gguf.quants.quantize(values, of), of


def rope_of(draw: random.Random, kind: str) -> dict:
    theta = draw.choice([10000.0, 500000.0, 1234.5])
    types = ["default", "default", "linear", "yarn"]
    types += ["llama3"] * 2 if kind == "llama" else []
    rope = {"rope_type": draw.choice(types), "rope_theta": theta}
    if rope["rope_type"] != "default":
        rope["factor"] = draw.choice([2.0, 8.0, 2.5])
    if rope["rope_type"] in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = 32
    if rope["rope_type"] == "yarn" and draw.random() < 0.5:
        rope |= {"beta_fast": 16.0, "beta_slow": 2.0}
    if rope["rope_type"] == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return rope


def make_model(draw: random.Random, kind: str, vocab_size: int):
    torch.manual_seed(draw.randrange(1 << 30))
    heads = draw.choice([2, 4])
    head_dim = draw.choice([8, 16, 64])
    hidden = draw.choice([heads * head_dim, 256, 64])
    if kind in ("gpt2", "bert", "qwen2"):
        hidden = heads * head_dim
    layers = draw.randrange(1, 4)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=vocab_size,
            n_positions=128,
            n_embd=hidden,
            n_head=heads,
            n_layer=layers,
            n_inner=draw.choice([None, 96]),
            layer_norm_epsilon=draw.choice([1e-5, 1e-3]),
            tie_word_embeddings=draw.random() < 0.5,
        )
        return transformers.GPT2LMHeadModel(config)
    common = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "intermediate_size": draw.choice([64, 256, 100]),
        "max_position_embeddings": 128,
    }
    if kind == "bert":
        config = transformers.BertConfig(
            **common, layer_norm_eps=draw.choice([1e-12, 1e-5])
        )
        return transformers.BertModel(config)
    common |= {
        "num_key_value_heads": draw.choice([heads, heads // 2, 1]),
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": draw.random() < 0.5,
        "rope_parameters": rope_of(draw, kind),
    }
    if kind != "qwen2":
        common["head_dim"] = head_dim
    if kind == "llama":
        config = transformers.LlamaConfig(
            **common,
            attention_bias=draw.random() < 0.3,
            mlp_bias=draw.random() < 0.3,
        )
    elif kind == "mistral":
        config = transformers.MistralConfig(**common, sliding_window=5)
    elif kind == "qwen2":
        config = transformers.Qwen2Config(**common)
    elif kind == "qwen3":
        config = transformers.Qwen3Config(**common)
    elif kind == "gemma":
        config = transformers.GemmaConfig(**{**common, "tie_word_embeddings": True})
    else:
        common |= {
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": head_dim,
            "sliding_window": 4,
            "num_hidden_layers": draw.randrange(1, 8),
        }
        if kind == "gemma2":
            config = transformers.Gemma2Config(**common)
        else:
            full = {"rope_type": "default", "rope_theta": 1e6}
            if draw.random() < 0.5:
                full |= {"rope_type": "linear", "factor": 8.0}
            common["rope_parameters"] = {
                "full_attention": full,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
            config = transformers.Gemma3TextConfig(**common)
    return transformers.AutoModelForCausalLM.from_config(config)


def write_rope(writer: gguf.GGUFWriter, rope: dict, config) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(32)
        for name in ("beta_fast", "beta_slow"):
            if name in rope:
                getattr(writer, f"add_rope_scaling_yarn_{name}")(rope[name])
    if rope["rope_type"] == "llama3":
        dim = config.head_dim
        power = torch.arange(0, dim, 2).double() / dim
        waves = 2 * torch.pi * rope["rope_theta"] ** power
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (32 / waves - low) / (high - low)
        factors = 1 / ((1 - smooth) / rope["factor"] + smooth)
        factors[waves < 32 / high] = 1
        factors[waves > 32 / low] = rope["factor"]
        writer.add_tensor("rope_freqs.weight", factors.float().numpy())


def write_config(writer: gguf.GGUFWriter, config, kind: str) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if kind == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    if kind == "bert":
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        writer.add_token_type_count(2)
        return
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if kind != "qwen2":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_dimension_count(config.head_dim)
    rope = config.rope_parameters
    write_rope(writer, rope.get("full_attention", rope), config)
    if kind in ("mistral", "gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def byte_tokenizer(texts: list[str], pre: str, size: int) -> Tokenizer:
    pattern = {"gpt-2": None, "llama-bpe": LLAMA3}
    pattern["qwen2"] = LLAMA3.replace("{1,3}", "")
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    by_bytes = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=pre == "gpt-2"
    )
    tokenizer.pre_tokenizer = by_bytes
    if pattern[pre]:
        split = pre_tokenizers.Split(Regex(pattern[pre]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, by_bytes])
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.add_tokens(["of course"])
    if pre == "llama-bpe":
        begin = tokenizer.token_to_id("<|begin|>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
        )
    return tokenizer


def score_tokenizer(texts: list[str], size: int, prefix: bool) -> tuple:
    """Returns the tokenizer that transformers would make, and pieces and scores."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=["▁"],
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    parts = json.loads(trained.to_str())
    vocab = parts["model"]["vocab"]
    pieces = sorted(vocab, key=vocab.get)
    scores = [0.0 if i < 259 else 259.0 - i for i in range(len(pieces))]
    merges = []
    for piece in pieces[259:]:
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [(a, b) for a, b in pairs if a in vocab and b in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(scores[vocab[piece]], a, b) for a, b in pairs]
    merges.sort(key=lambda each: (each[0], len(each[1]), len(each[2])), reverse=True)
    parts["model"]["merges"] = [[a, b] for _, a, b in merges]
    parts["model"]["fuse_unk"] = True
    parts["added_tokens"] = parts["added_tokens"][:3]
    parts["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer, pieces, scores


def write_bytes_tokens(writer, tokenizer: Tokenizer, pre: str, size: int) -> None:
    parts = json.loads(tokenizer.to_str())
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.get)
    special = {each["content"]: each["special"] for each in parts["added_tokens"]}
    types = [
        (TokenType.CONTROL if special[token] else TokenType.USER_DEFINED)
        if token in special
        else TokenType.NORMAL
        for token in tokens
    ]
    for i in range(len(tokens), size):
        tokens.append(f"[PAD{i}]")
        types.append(TokenType.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in parts["model"]["merges"]])
    writer.add_bos_token_id(vocab["<|begin|>"])
    writer.add_eos_token_id(vocab["<|end|>"])


def write_scored_tokens(writer, pieces, scores, size: int, prefix: bool) -> None:
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    kinds += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * (len(pieces) - 259)
    for i in range(len(pieces), size):
        pieces, scores = [*pieces, f"[PAD{i}]"], [*scores, -10000.0]
        kinds.append(TokenType.UNUSED)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if not prefix:
        writer.add_add_space_prefix(False)


def write_tokens(writer, draw: random.Random, kind: str, size: int) -> Tokenizer | None:
    if kind == "bert":
        return None
    texts = [line for line in Path(__file__).read_text().splitlines() if line]
    if draw.random() < 0.6:
        pre = draw.choice(["gpt-2", "llama-bpe", "qwen2"])
        tokenizer = byte_tokenizer(texts, pre, size - 10)
        write_bytes_tokens(writer, tokenizer, pre, size)
        return tokenizer
    prefix = draw.random() < 0.5
    tokenizer, pieces, scores = score_tokenizer(texts, size - 10, prefix)
    write_scored_tokens(writer, pieces, scores, size, prefix)
    return tokenizer


def compare_tokens(program: str, path: str, tokenizer, draw: random.Random) -> int:
    # Without special tokens, which a tokenizer with a space before texts refuses.
    words = [word for word in Path(__file__).read_text().split() if "<" not in word]
    lines = [
        "".join(draw.choice(LETTERS) for _ in range(draw.randrange(1, 40)))
        for _ in range(50)
    ]
    lines += [" ".join(draw.sample(words, 6)) for _ in range(50)]
    if "Prepend" not in tokenizer.to_str():
        lines += ["<|end|>a of course<|begin|> x", "<s>a</s> b"]
    lines = [line.replace("\u2028", " ").replace("\r", " ") for line in lines]
    done = subprocess.run(
        [program, "tokens", path], input="\n".join(lines).encode(), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    for line, ids in zip(lines, done.stdout.decode().splitlines(), strict=True):
        wanted = ",".join(map(str, tokenizer.encode(line).ids))
        assert ids == wanted, (path, line, ids, wanted)
    return len(lines)


def compare(programs: list[str], folder: Path, draw: random.Random) -> str:
    kind = draw.choice(TYPES)
    architecture = "llama" if kind == "mistral" else kind
    size = draw.choice([600, 640])
    model = make_model(draw, kind, size).eval()
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    write_config(writer, model.config, kind)
    tokenizer = write_tokens(writer, draw, kind, size)
    types = set()
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.copy_(torch.randn_like(x) * (0.5 if x.dim() == 1 else 0.1))
            target = name_in_gguf(name, architecture)
            if target is None:
                continue
            changed = Changed(name, architecture, model.config)
            data, of = stored(draw, changed.done(x), "norm" in name)
            types.add(of.name)
            writer.add_tensor(target, data, raw_dtype=of)
            values = torch.from_numpy(gguf.quants.dequantize(data, of).copy())
            x.copy_(changed.undone(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ids = [draw.randrange(size) for _ in range(draw.randrange(1, 60))]
    out = folder / "out.safetensors"
    done = subprocess.run(
        [programs[0], str(path), ",".join(map(str, ids)), str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (kind, model.config, done.stderr)
    with torch.no_grad():
        wanted = model(torch.tensor([ids]))[0].numpy()
    found = load_file(out)["output"]
    error = np.abs(found - wanted).max() / max(1, np.abs(wanted).max())
    assert error < 2e-4, (kind, model.config, types, error)
    lines = 0
    if tokenizer is not None and programs[1]:
        lines = compare_tokens(programs[1], str(path), tokenizer, draw)
    return f"{kind}: {error:.1e}, {', '.join(sorted(types))}, {lines} texts"


def main(logits: str, program: str, count: str = "40", seed: str = "1") -> None:
    if find_spec("onnxruntime_genai") is None and not os.environ.get(
        "TORCH_ATTENTION_PYTHON_PACKAGES"
    ):
        program = ""
    for i in range(int(seed), int(seed) + int(count)):
        with tempfile.TemporaryDirectory() as folder:
            print(i, compare([logits, program], Path(folder), random.Random(i)))


main(*sys.argv[1:])
