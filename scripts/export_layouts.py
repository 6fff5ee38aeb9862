#!/usr/bin/env python3
"""Writes weight files of many attention classes for the C++ tests.

Every case is a pair of files:

  NAME.safetensors or NAME.pt  the state dict as users of the class have it,
                               often of a whole small model
  NAME.expected.safetensors    "input" (B, T, d_in) and "output" (B, T, d_out)
                               of one attention module in it, without dropout

The metadata of the second say what the module is, all as strings:

  class, layout                Python's class, and the name of our layout
  file, prefix                 the first file, and where in it the module is
  d_in, d_out                  d_out: of all heads together
  num_heads, num_kv_heads, context_length
  causal, qkv_bias             true or false
  out_proj, out_bias           whether there is an output projection, and
                               whether it has a bias
  scale                        of the scores; "" for 1 / sqrt(head dimension)

Shapes: B batch, T tokens, L context length, H heads, D head dimension,
C channels, E channels of all heads.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors_file
import torch
from export_reference import (
    CausalAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
    draw,
    first_line,
)
from torch import Tensor, nn

BATCH = 2
TOKENS = 5
SEED = 123
TOLERANCE = 1e-6


class ExportError(Exception):
    """A failure to be told in one line."""


# --- Classes of books and notebooks ----------------------------------------
#
# Written anew: only the names of their weights and what they compute matter.


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None
) -> Tensor:
    """Attention of heads (B, H, T, D) -> (B, T, H * D), step by step."""
    scores = q @ k.transpose(-2, -1)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        t = q.shape[-2]
        future = torch.ones(t, t, dtype=torch.bool).triu(diagonal=1)
        scores = scores.masked_fill(future, -torch.inf)
    context = scores.softmax(dim=-1) @ v
    return context.transpose(-3, -2).flatten(-2)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, H * D) -> (B, H, T, D)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


class LinearAttention(nn.Module):
    """q_linear, k_linear, v_linear and out_proj; not masked."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_linear = nn.Linear(embed_dim, embed_dim)
        self.k_linear = nn.Linear(embed_dim, embed_dim)
        self.v_linear = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            split_heads(layer(x), self.num_heads)
            for layer in (self.q_linear, self.k_linear, self.v_linear)
        )
        return self.out_proj(attend(q, k, v, causal=False))


class Head(nn.Module):
    """One masked head, without a projection.

    With value_as_key the scores are of queries and values, and the key has no
    effect.
    """

    def __init__(
        self,
        n_embd: int,
        head_size: int,
        context_length: int,
        bias: bool,
        value_as_key: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.value_as_key = value_as_key
        self.scale = scale
        self.query = nn.Linear(n_embd, head_size, bias=bias)
        self.key = nn.Linear(n_embd, head_size, bias=bias)
        self.value = nn.Linear(n_embd, head_size, bias=bias)
        ones = torch.ones(context_length, context_length)
        self.register_buffer("tril", ones.tril())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unsqueeze(-3)
            for layer in (self.query, self.key, self.value)
        )
        if self.value_as_key:
            k = v
        return attend(q, k, v, causal=True, scale=self.scale)


class MultipleHeadAttention(nn.Module):
    """Heads side by side, and a projection."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        context_length: int,
        **options: Any,
    ) -> None:
        super().__init__()
        n_embd = num_heads * head_size
        self.heads = nn.ModuleList(
            Head(n_embd, head_size, context_length, **options)
            for _ in range(num_heads)
        )
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class MultipleHeadAttentionV2(nn.Module):
    """The same with all heads in one."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        context_length: int,
        bias: bool,
        value_as_key: bool = False,
    ) -> None:
        super().__init__()
        n_embd = num_heads * head_size
        self.num_heads = num_heads
        self.value_as_key = value_as_key
        self.query = nn.Linear(n_embd, n_embd, bias=bias)
        self.key = nn.Linear(n_embd, n_embd, bias=bias)
        self.value = nn.Linear(n_embd, n_embd, bias=bias)
        ones = torch.ones(context_length, context_length)
        self.register_buffer("tril", ones.tril())
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            split_heads(layer(x), self.num_heads)
            for layer in (self.query, self.key, self.value)
        )
        if self.value_as_key:
            k = v
        return self.proj(attend(q, k, v, causal=True))


class CausalSelfAttention(nn.Module):
    """nanoGPT's: one linear layer for queries, keys and values.

    With `mask` it has the buffer that its form without a fused kernel has.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        bias: bool,
        mask: bool = False,
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        if mask:
            ones = torch.ones(1, 1, block_size, block_size)
            self.register_buffer("bias", ones.tril())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            split_heads(part, self.n_head)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        return self.c_proj(attend(q, k, v, causal=True))


def book_model() -> nn.Module:
    """The names of the book's GPT: att below trf_blocks."""

    def block() -> nn.Module:
        result = nn.Module()
        result.att = MultiHeadAttention(8, 8, 6, 0.1, num_heads=2)
        result.ff = nn.Module()
        result.ff.layers = nn.Sequential(
            nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        )
        for name in ("norm1", "norm2"):
            norm = nn.Module()
            norm.scale = nn.Parameter(torch.ones(8))
            norm.shift = nn.Parameter(torch.zeros(8))
            setattr(result, name, norm)
        return result

    model = nn.Module()
    model.tok_emb = nn.Embedding(11, 8)
    model.pos_emb = nn.Embedding(6, 8)
    model.trf_blocks = nn.Sequential(block(), block())
    model.out_head = nn.Linear(8, 11, bias=False)
    return model


def nano_gpt_model(bias: bool) -> nn.Module:
    """The names of nanoGPT: attn below transformer.h."""

    def block() -> nn.Module:
        result = nn.Module()
        result.ln_1 = nn.LayerNorm(8, bias=bias)
        result.attn = CausalSelfAttention(8, 2, 6, bias)
        result.ln_2 = nn.LayerNorm(8, bias=bias)
        result.mlp = nn.Module()
        result.mlp.c_fc = nn.Linear(8, 32, bias=bias)
        result.mlp.c_proj = nn.Linear(32, 8, bias=bias)
        return result

    model = nn.Module()
    model.transformer = nn.ModuleDict(
        {
            "wte": nn.Embedding(11, 8),
            "wpe": nn.Embedding(6, 8),
            "h": nn.ModuleList(block() for _ in range(2)),
            "ln_f": nn.LayerNorm(8, bias=bias),
        }
    )
    model.lm_head = nn.Linear(8, 11, bias=False)
    model.transformer.wte.weight = model.lm_head.weight
    return model


# --- torch.nn.MultiheadAttention -------------------------------------------


def separate_projections(embed_dim: int, num_heads: int) -> nn.Module:
    """MultiheadAttention in its form for keys and values of other sizes.

    Self-attention has one input, of one size, for which the constructor would
    pack the weights. So it gets other sizes first.
    """
    other = embed_dim + 1
    module = nn.MultiheadAttention(
        embed_dim, num_heads, kdim=other, vdim=other, batch_first=True
    )
    for name in ("k_proj_weight", "v_proj_weight"):
        setattr(module, name, nn.Parameter(torch.empty(embed_dim, embed_dim)))
    module.kdim = module.vdim = embed_dim
    return module


def run_torch(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, x, x, need_weights=False)[0]


def run_torch_causal(module: nn.Module, x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return module(x, x, x, attn_mask=mask, need_weights=False)[0]


# --- Hugging Face ----------------------------------------------------------


def has_transformers() -> bool:
    try:
        import transformers  # noqa: F401
    except ImportError:
        return False
    return True


def additive_mask(x: Tensor) -> Tensor:
    """(1, 1, T, T), the future at minus infinity."""
    t = x.shape[1]
    return torch.full((1, 1, t, t), -torch.inf).triu(diagonal=1)


def run_masked(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, attention_mask=additive_mask(x))[0]


def run_unmasked(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)[0]


def run_bert(module: nn.Module, x: Tensor) -> Tensor:
    """Up to and with the output's dense layer, without the residual."""
    return module.output.dense(module.self(x)[0])


def run_without_rotation(module: nn.Module, x: Tensor) -> Tensor:
    """With the rotary position embedding switched off.

    Our modules have none. A rotation by angles of zero leaves queries and keys
    as they are, so that what is left is the attention.
    """
    angles = torch.zeros(1, x.shape[1], module.head_dim)
    rotation = (angles.cos(), angles.sin())
    mask = additive_mask(x)
    return module(x, position_embeddings=rotation, attention_mask=mask)[0]


def gpt2_model(head: bool = True) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

    config = GPT2Config(
        vocab_size=11,
        n_positions=8,
        n_embd=12,
        n_layer=2,
        n_head=3,
        attn_implementation="eager",
    )
    return (GPT2LMHeadModel if head else GPT2Model)(config)


def bert_model() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=9,
        attn_implementation="eager",
    )
    return BertForMaskedLM(config)


def llama_options() -> dict[str, Any]:
    return {
        "vocab_size": 11,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 10,
        "attn_implementation": "eager",
    }


def llama_model(bias: bool = False) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(attention_bias=bias, **llama_options())
    return LlamaForCausalLM(config)


def qwen2_model() -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**llama_options()))


def bart_model() -> nn.Module:
    from transformers import BartConfig, BartModel

    config = BartConfig(
        vocab_size=11,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=8,
        pad_token_id=1,
        attn_implementation="eager",
    )
    return BartModel(config)


def whisper_model() -> nn.Module:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=11,
        num_mel_bins=2,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=8,
        max_target_positions=8,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=3,
        decoder_start_token_id=2,
        attn_implementation="eager",
    )
    return WhisperModel(config)


# --- What users save -------------------------------------------------------


def save_state(module: nn.Module, path: Path) -> None:
    """torch.save, or a safetensors file, of the state dict."""
    state = module.state_dict()
    if path.suffix == ".pt":
        torch.save(state, path)
    else:
        safetensors_file.write(path, state, {"format": "pt"})


def save_pretrained(module: nn.Module, path: Path) -> None:
    """By Hugging Face's own function, which leaves out tied weights."""
    with tempfile.TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        path.write_bytes(Path(folder, "model.safetensors").read_bytes())


def save_published_gpt2(module: nn.Module, path: Path) -> None:
    """As the published GPT-2 has it: with its mask, without `transformer`."""
    save_gpt2(module, path, torch.float32, {})


def save_older_gpt2(module: nn.Module, path: Path) -> None:
    """As older releases saved it: two buffers more for the mask."""
    extra = {"masked_bias": torch.tensor(-1e4)}
    save_gpt2(module, path, torch.uint8, extra)


def save_gpt2(
    module: nn.Module, path: Path, dtype: torch.dtype, extra: dict[str, Tensor]
) -> None:
    length = module.config.n_positions
    mask = torch.ones(1, 1, length, length, dtype=dtype).tril()
    state = {}
    for key, tensor in module.state_dict().items():
        if key.endswith("attn.c_attn.weight"):
            place = key.removesuffix("c_attn.weight")
            state[f"{place}bias"] = mask.clone()
            state.update({f"{place}{k}": t for k, t in extra.items()})
        state[key] = tensor
    if path.suffix == ".pt":
        torch.save(state, path)
    else:
        safetensors_file.write(path, state, {"format": "pt"})


def save_nano_gpt(module: nn.Module, path: Path) -> None:
    """nanoGPT's checkpoint of a compiled model."""
    state = module.state_dict()
    checkpoint = {
        "model": {f"_orig_mod.{key}": t for key, t in state.items()},
        "optimizer": torch.optim.AdamW(module.parameters()).state_dict(),
        "model_args": {"n_layer": 2, "n_head": 2, "n_embd": 8},
        "iter_num": 200,
        "best_val_loss": torch.tensor(1.5),
        "config": {"dataset": "shakespeare_char", "learning_rate": 6e-4},
    }
    torch.save(checkpoint, path)


# --- Cases -----------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model, the attention module in it, and what that module is."""

    name: str
    layout: str
    build: Callable[[], nn.Module]
    d_in: int
    d_out: int
    heads: int
    context_length: int
    module: str = ""  # path of the attention in the model
    kv_heads: int = 0  # 0: as many as heads
    causal: bool = True
    qkv_bias: bool = True
    out_proj: bool = True
    out_bias: bool = True
    scale: float | None = None
    prefix: str | None = None  # path in the file, if another
    suffix: str = ".safetensors"
    run: Callable[[nn.Module, Tensor], Tensor] = field(
        default=lambda module, x: module(x)
    )
    save: Callable[[nn.Module, Path], None] = save_state

    @property
    def file(self) -> str:
        return self.name + self.suffix

    def metadata(self, module: nn.Module) -> dict[str, str]:
        values = {
            "class": type(module).__name__,
            "layout": self.layout,
            "file": self.file,
            "prefix": self.module if self.prefix is None else self.prefix,
            "d_in": self.d_in,
            "d_out": self.d_out,
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads or self.heads,
            "context_length": self.context_length,
            "causal": self.causal,
            "qkv_bias": self.qkv_bias,
            "out_proj": self.out_proj,
            "out_bias": self.out_proj and self.out_bias,
            "scale": "" if self.scale is None else repr(self.scale),
        }
        return {key: as_string(value) for key, value in values.items()}


def as_string(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def book_cases() -> Iterator[Case]:
    yield Case(
        "book",
        "book",
        lambda: MultiHeadAttention(8, 12, 6, 0.1, 3, qkv_bias=True),
        *(8, 12, 3, 6),
    )
    yield Case(
        "book-unmasked",
        "book",
        lambda: MultiHeadAttention(6, 4, 7, 0.0, 2, causal=False),
        *(6, 4, 2, 7),
        causal=False,
        qkv_bias=False,
        suffix=".pt",
    )
    yield Case(
        "book-model",
        "book",
        book_model,
        *(8, 8, 2, 6),
        module="trf_blocks.1.att",
        qkv_bias=False,
        suffix=".pt",
    )
    yield Case(
        "book-single",
        "book",
        lambda: CausalAttention(5, 4, 6, 0.1, qkv_bias=True),
        *(5, 4, 1, 6),
        out_proj=False,
    )
    yield Case(
        "book-self-v2",
        "book",
        lambda: SelfAttentionV2(5, 4),
        *(5, 4, 1, TOKENS),
        causal=False,
        qkv_bias=False,
        out_proj=False,
    )
    yield Case(
        "self-attention-v1",
        "self_attention_v1",
        lambda: SelfAttentionV1(5, 4),
        *(5, 4, 1, TOKENS),
        causal=False,
        qkv_bias=False,
        out_proj=False,
    )
    for bias in (False, True):
        yield Case(
            f"wrapper{'-bias' if bias else ''}",
            "head_list",
            lambda bias=bias: MultiHeadAttentionWrapper(
                5, 4, 6, 0.1, 3, qkv_bias=bias
            ),
            *(5, 12, 3, 6),
            qkv_bias=bias,
            out_proj=False,
            suffix=".pt" if bias else ".safetensors",
        )


def notebook_cases() -> Iterator[Case]:
    yield Case(
        "q-linear",
        "q_linear",
        lambda: LinearAttention(8, 2),
        *(8, 8, 2, TOKENS),
        causal=False,
    )
    yield Case(
        "query-key-value",
        "query_key_value",
        lambda: MultipleHeadAttentionV2(2, 4, 6, bias=True),
        *(8, 8, 2, 6),
    )
    yield Case(
        "query-key-value-single",
        "query_key_value",
        lambda: Head(8, 4, 6, bias=False),
        *(8, 4, 1, 6),
        qkv_bias=False,
        out_proj=False,
        suffix=".pt",
    )
    for bias in (False, True):
        yield Case(
            f"query-key-value-heads{'-bias' if bias else ''}",
            "query_key_value_heads",
            lambda bias=bias: MultipleHeadAttention(4, 2, 6, bias=bias),
            *(8, 8, 4, 6),
            qkv_bias=bias,
            suffix=".pt" if bias else ".safetensors",
        )
    yield Case(
        "value-as-key",
        "value_as_key",
        lambda: MultipleHeadAttentionV2(2, 4, 6, bias=True, value_as_key=True),
        *(8, 8, 2, 6),
    )
    yield Case(
        "value-as-key-single",
        "value_as_key",
        lambda: Head(8, 4, 6, bias=True, value_as_key=True, scale=8**-0.5),
        *(8, 4, 1, 6),
        out_proj=False,
        scale=8**-0.5,
    )
    yield Case(
        "value-as-key-heads",
        "value_as_key_heads",
        lambda: MultipleHeadAttention(2, 4, 6, bias=True, value_as_key=True),
        *(8, 8, 2, 6),
        suffix=".pt",
    )
    yield Case(
        "value-as-key-heads-scale",
        "value_as_key_heads",
        lambda: MultipleHeadAttention(
            2, 4, 6, bias=True, value_as_key=True, scale=8**-0.5
        ),
        *(8, 8, 2, 6),
        scale=8**-0.5,
    )


def nano_gpt_cases() -> Iterator[Case]:
    yield Case(
        "nano-gpt",
        "nano_gpt",
        lambda: nano_gpt_model(bias=True),
        *(8, 8, 2, 6),
        module="transformer.h.1.attn",
        prefix="_orig_mod.transformer.h.1.attn",
        suffix=".pt",
        save=save_nano_gpt,
    )
    yield Case(
        "nano-gpt-nobias",
        "nano_gpt",
        lambda: nano_gpt_model(bias=False),
        *(8, 8, 2, 6),
        module="transformer.h.0.attn",
        qkv_bias=False,
        out_bias=False,
    )
    yield Case(
        "nano-gpt-mask",
        "nano_gpt",
        lambda: CausalSelfAttention(6, 3, 7, bias=True, mask=True),
        *(6, 6, 3, 7),
    )


def torch_cases() -> Iterator[Case]:
    yield Case(
        "torch",
        "torch_multihead_attention",
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        *(8, 8, 2, TOKENS),
        causal=False,
        run=run_torch,
    )
    yield Case(
        "torch-nobias",
        "torch_multihead_attention",
        lambda: nn.MultiheadAttention(6, 3, bias=False, batch_first=True),
        *(6, 6, 3, TOKENS),
        qkv_bias=False,
        out_bias=False,
        suffix=".pt",
        run=run_torch_causal,
    )
    yield Case(
        "torch-separate",
        "torch_multihead_attention",
        lambda: separate_projections(8, 2),
        *(8, 8, 2, TOKENS),
        causal=False,
        run=run_torch,
    )
    yield Case(
        "torch-encoder",
        "torch_multihead_attention",
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2
        ),
        *(8, 8, 2, TOKENS),
        module="layers.1.self_attn",
        causal=False,
        suffix=".pt",
        run=run_torch,
    )


def transformers_cases() -> Iterator[Case]:
    yield Case(
        "gpt2",
        "gpt2",
        gpt2_model,
        *(12, 12, 3, 8),
        module="transformer.h.1.attn",
        run=run_masked,
        save=save_pretrained,
    )
    yield Case(
        "gpt2-torch",
        "gpt2",
        gpt2_model,
        *(12, 12, 3, 8),
        module="transformer.h.0.attn",
        suffix=".pt",
        run=run_masked,
    )
    yield Case(
        "gpt2-published",
        "gpt2",
        lambda: gpt2_model(head=False),
        *(12, 12, 3, 8),
        module="h.1.attn",
        run=run_masked,
        save=save_published_gpt2,
    )
    yield Case(
        "gpt2-older",
        "gpt2",
        lambda: gpt2_model(head=False),
        *(12, 12, 3, 8),
        module="h.1.attn",
        suffix=".pt",
        run=run_masked,
        save=save_older_gpt2,
    )
    yield Case(
        "bert",
        "bert",
        bert_model,
        *(8, 8, 2, 9),
        module="bert.encoder.layer.1.attention",
        causal=False,
        run=run_bert,
        save=save_pretrained,
    )
    llama = {
        "module": "model.layers.1.self_attn",
        "kv_heads": 2,
        "run": run_without_rotation,
    }
    yield Case(
        "llama",
        "llama",
        llama_model,
        *(16, 16, 4, 10),
        **llama,
        qkv_bias=False,
        out_bias=False,
        save=save_pretrained,
    )
    yield Case(
        "llama-bias",
        "llama",
        lambda: llama_model(bias=True),
        *(16, 16, 4, 10),
        **llama,
        suffix=".pt",
    )
    yield Case(
        "qwen2",
        "llama",
        qwen2_model,
        *(16, 16, 4, 10),
        **llama,
        out_bias=False,
        save=save_pretrained,
    )
    yield Case(
        "bart-encoder",
        "bart",
        bart_model,
        *(8, 8, 2, 8),
        module="encoder.layers.0.self_attn",
        causal=False,
        run=run_unmasked,
        save=save_pretrained,
    )
    yield Case(
        "bart-decoder",
        "bart",
        bart_model,
        *(8, 8, 2, 8),
        module="decoder.layers.0.self_attn",
        suffix=".pt",
        run=run_masked,
    )
    yield Case(  # its keys have no bias
        "whisper",
        "bart",
        whisper_model,
        *(8, 8, 2, 8),
        module="decoder.layers.0.self_attn",
        run=run_masked,
        save=save_pretrained,
    )


def own_cases() -> list[Case]:
    """Those that need torch alone."""
    return [
        *book_cases(),
        *notebook_cases(),
        *nano_gpt_cases(),
        *torch_cases(),
    ]


# --- Writing ---------------------------------------------------------------


def fill(model: nn.Module, generator: torch.Generator) -> None:
    """Draws every weight anew: many initial ones are all zero or all one."""
    with torch.no_grad():
        for parameter in model.parameters():
            values = draw(parameter.shape, torch.float64, generator)
            parameter.copy_(0.4 * values)


def write_case(folder: Path, case: Case) -> None:
    model = case.build().eval()
    generator = torch.Generator().manual_seed(SEED)
    fill(model, generator)
    module = model.get_submodule(case.module)
    shape = (BATCH, TOKENS, case.d_in)
    x = draw(shape, torch.float32, generator)
    # Not no_grad, in which torch.nn.MultiheadAttention takes another way.
    output = case.run(module, x).detach()
    if output.shape != (BATCH, TOKENS, case.d_out):
        raise ExportError(f"{case.name}: the output is {tuple(output.shape)}")
    case.save(model, folder / case.file)
    safetensors_file.write(
        folder / f"{case.name}.expected.safetensors",
        {"input": x, "output": output},
        case.metadata(module),
    )


def write(folder: Path, require_transformers: bool) -> list[Case]:
    """Writes all cases that can be made here; returns those left out."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = own_cases()
    left_out = []
    if has_transformers():
        cases += transformers_cases()
    elif require_transformers:
        raise ExportError(
            "transformers cannot be imported: install"
            " scripts/requirements-layouts.txt"
        )
    else:
        left_out = list(transformers_cases())
    for case in cases:
        write_case(folder, case)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(cases)} cases, {size / 1024:.0f} KiB")
    return left_out


# --- Checking --------------------------------------------------------------


def check(folder: Path, require_transformers: bool) -> int:
    """Compares a folder with the cases made anew; 1 if they differ."""
    if not folder.is_dir():
        raise ExportError(f"{folder}: no such folder")
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary)
        left_out = write(fresh, require_transformers)
        skipped = {name for case in left_out for name in files_of(case)}
        files = {path.name for d in (fresh, folder) for path in d.iterdir()}
        failures = 0
        names = sorted(files - skipped)
        for name in names:
            problem = difference(folder / name, fresh / name)
            failures += bool(problem)
            print(f"FAIL {name}: {problem}" if problem else f"ok   {name}")
    for case in left_out:
        print(f"LEFT OUT {case.name}: transformers cannot be imported")
    print(f"{len(names) - failures} of {len(names)} files agree")
    return 1 if failures else 0


def files_of(case: Case) -> tuple[str, str]:
    return case.file, f"{case.name}.expected.safetensors"


def difference(committed: Path, fresh: Path) -> str:
    """How two files differ, or nothing."""
    if not fresh.is_file():
        return "is not one of the files"
    if not committed.is_file():
        return "is missing"
    try:
        ours, wanted = flatten(read(committed)), flatten(read(fresh))
    except Exception as error:  # a broken file can raise nearly anything
        return f"cannot be read: {first_line(error)}"
    if list(ours) != list(wanted):
        names = sorted(set(ours) ^ set(wanted)) or ["their order"]
        return f"names differ: {', '.join(names)}"
    for name, value in wanted.items():
        if not equal(ours[name], value):
            return f"{name} differs"
    return ""


def read(path: Path) -> Any:
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)
    tensors, metadata = safetensors_file.read(path)
    return {"metadata": metadata, "tensors": tensors}


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts and lists as one dict of dotted names."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {prefix: value}
    return {
        name: leaf
        for key, child in items
        for name, leaf in flatten(
            child, f"{prefix}.{key}" if prefix else str(key)
        ).items()
    }


def equal(ours: Any, wanted: Any) -> bool:
    if not isinstance(ours, Tensor) or not isinstance(wanted, Tensor):
        return type(ours) is type(wanted) and ours == wanted
    if ours.dtype != wanted.dtype or ours.shape != wanted.shape:
        return False
    return torch.allclose(ours, wanted, rtol=TOLERANCE, atol=TOLERANCE)


# --- Command line ----------------------------------------------------------


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write weight files of many attention classes."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, metavar, text in (
        ("write", "OUT", "the committed cases"),
        ("check", "DIR", "compare a folder with the cases made anew"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=Path, metavar=metavar)
        command.add_argument(
            "--require-transformers",
            action="store_true",
            help="fail where the package transformers is not there; without"
            " this its cases are left out",
        )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    warnings.simplefilter("ignore")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        if options.command == "check":
            return check(options.folder, options.require_transformers)
        for case in write(options.folder, options.require_transformers):
            print(f"LEFT OUT {case.name}: transformers cannot be imported")
    except (ExportError, OSError, UnicodeError) as error:
        print(f"export_layouts.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
