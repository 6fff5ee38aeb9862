"""Attention classes of notebooks and of nanoGPT, and models around them.

They are written again: only the names of their weights and their results matter.

Shapes: B batch, T tokens, H heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_attention_reference.classes import MultiHeadAttention


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None
) -> Tensor:
    """Computes attention of heads (B, H, T, D) -> (B, T, H * D), by steps."""
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


# --- Notebooks -------------------------------------------------------------


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
    """One masked head (or more, of equal size), without a projection.

    With value_as_key the scores are those of queries and values, and the key
    has no effect.
    """

    def __init__(
        self,
        n_embd: int,
        head_size: int,
        context_length: int,
        bias: bool,
        value_as_key: bool = False,
        scale: float | None = None,
        num_heads: int = 1,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.value_as_key = value_as_key
        self.scale = scale
        width = num_heads * head_size
        self.query = nn.Linear(n_embd, width, bias=bias)
        self.key = nn.Linear(n_embd, width, bias=bias)
        self.value = nn.Linear(n_embd, width, bias=bias)
        ones = torch.ones(context_length, context_length)
        self.register_buffer("tril", ones.tril())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            split_heads(layer(x), self.num_heads)
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


class MultipleHeadAttentionV2(Head):
    """MultipleHeadAttention with all heads in one projection."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        context_length: int,
        **options: Any,
    ) -> None:
        n_embd = num_heads * head_size
        super().__init__(
            n_embd, head_size, context_length, num_heads=num_heads, **options
        )
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(super().forward(x))


# --- nanoGPT ---------------------------------------------------------------


class CausalSelfAttention(nn.Module):
    """One linear layer for queries, keys and values.

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


def nano_gpt_model(bias: bool) -> nn.Module:
    """Returns a model with nanoGPT's names: attn below transformer.h."""

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


# --- The book --------------------------------------------------------------


def book_model() -> nn.Module:
    """Returns a model with the names of the book's GPT: att in trf_blocks."""

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


# --- torch.nn.MultiheadAttention -------------------------------------------


def separate_projections(embed_dim: int, num_heads: int) -> nn.Module:
    """Returns MultiheadAttention's form for keys and values of other sizes.

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
