"""Cases that need torch alone: books, notebooks, nanoGPT and torch.nn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_attention_reference.classes import (
    CausalAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
)

from .case import TOKENS, Case
from .classes import (
    CausalSelfAttention,
    Head,
    LinearAttention,
    MultipleHeadAttention,
    MultipleHeadAttentionV2,
    book_model,
    nano_gpt_model,
    separate_projections,
)


def cases() -> Iterator[Case]:
    yield from book_cases()
    yield from notebook_cases()
    yield from nano_gpt_cases()
    yield from torch_cases()


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
            partial(MultiHeadAttentionWrapper, 5, 4, 6, 0.1, 3, qkv_bias=bias),
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
            partial(MultipleHeadAttention, 4, 2, 6, bias=bias),
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


def run_torch(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, x, x, need_weights=False)[0]


def run_torch_causal(module: nn.Module, x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return module(x, x, x, attn_mask=mask, need_weights=False)[0]


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
