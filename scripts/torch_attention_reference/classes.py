"""The Python classes that the library mirrors.

Scores are scaled by integers kept in the module: a size read from a tensor
is itself a tensor while tracing, and its root would be rounded to float32.

Shapes: B batch, T tokens, L context length, H heads, D head dimension.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn


class SelfAttentionV1(nn.Module):
    """Self-attention on bare weight matrices: (T, d_in) -> (T, d_out)."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.d_out = d_out
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Tensor) -> Tensor:
        keys = x @ self.W_key
        queries = x @ self.W_query
        values = x @ self.W_value
        scores = queries @ keys.transpose(-2, -1)  # (T, T)
        weights = torch.softmax(scores / self.d_out**0.5, dim=-1)
        return weights @ values


class SelfAttentionV2(nn.Module):
    """Self-attention on linear layers: (T, d_in) -> (T, d_out)."""

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.d_out = d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        scores = queries @ keys.transpose(-2, -1)  # (T, T)
        weights = torch.softmax(scores / self.d_out**0.5, dim=-1)
        return weights @ values


def future_mask(context_length: int) -> Tensor:
    """Ones above the diagonal: (L, L)."""
    ones = torch.ones(context_length, context_length)
    return torch.triu(ones, diagonal=1)


class CausalAttention(nn.Module):
    """One masked head with dropout: (B, T, d_in) -> (B, T, d_out).

    With causal=False the mask is registered but not applied.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        qkv_bias: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.d_out = d_out
        self.causal = causal
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", future_mask(context_length))

    def forward(self, x: Tensor) -> Tensor:
        _, t, _ = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        scores = queries @ keys.transpose(1, 2)  # (B, T, T)
        if self.causal:
            scores.masked_fill_(self.mask.bool()[:t, :t], -torch.inf)
        weights = torch.softmax(scores / self.d_out**0.5, dim=-1)
        weights = self.dropout(weights)
        return weights @ values


class MultiHeadAttentionWrapper(nn.Module):
    """Heads side by side: (B, T, d_in) -> (B, T, H * d_out)."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            CausalAttention(
                d_in, d_out, context_length, dropout, qkv_bias, causal
            )
            for _ in range(num_heads)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


class MultiHeadAttention(nn.Module):
    """Heads split from one projection: (B, T, d_in) -> (B, T, d_out).

    With causal=False the mask is registered but not applied.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
        causal: bool = True,
    ) -> None:
        super().__init__()
        if d_out % num_heads:
            raise ValueError("d_out must be divisible by num_heads")
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.causal = causal
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", future_mask(context_length))

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)

        # (B, T, d_out) -> (B, T, H, D) -> (B, H, T, D)
        keys = keys.view(b, t, self.num_heads, self.head_dim)
        values = values.view(b, t, self.num_heads, self.head_dim)
        queries = queries.view(b, t, self.num_heads, self.head_dim)
        keys = keys.transpose(1, 2)
        queries = queries.transpose(1, 2)
        values = values.transpose(1, 2)

        scores = queries @ keys.transpose(2, 3)  # (B, H, T, T)
        if self.causal:
            scores.masked_fill_(self.mask.bool()[:t, :t], -torch.inf)
        weights = torch.softmax(scores / self.head_dim**0.5, dim=-1)
        weights = self.dropout(weights)

        context = (weights @ values).transpose(1, 2)  # (B, T, H, D)
        context = context.contiguous().view(b, t, self.d_out)
        return self.out_proj(context)


# Short name -> class; the names of cases begin with the short names.
CLASSES = {
    "self-v1": SelfAttentionV1,
    "self-v2": SelfAttentionV2,
    "single": CausalAttention,
    "wrapper": MultiHeadAttentionWrapper,
    "mha": MultiHeadAttention,
}


def keywords(kind: str) -> list[str]:
    """Returns the constructor's parameters, by the class's short name."""
    return list(inspect.signature(CLASSES[kind]).parameters)
