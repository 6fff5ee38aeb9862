"""Cases of classes that keep queries, keys and values in one layer, and of
classes with other short names: timm, flash-attn, diffusers, vit-pytorch, T5,
llama.cpp.

They are written again: only the names of their weights and their results matter.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from .case import TOKENS, Case
from .classes import attend, split_heads


class Joined(nn.Module):
    """One layer of these names: the rows of queries, then keys, then values."""

    def __init__(self, width: int, heads: int, joined: str, out: str) -> None:
        super().__init__()
        self.heads = heads
        self.names = (joined, out)
        self.add_module(joined, nn.Linear(width, 3 * width))
        if out == "to_out.0":
            self.to_out = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1))
        else:
            self.add_module(out, nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        joined, out = self.names
        parts = self.get_submodule(joined)(x).chunk(3, dim=-1)
        q, k, v = (split_heads(part, self.heads) for part in parts)
        return self.get_submodule(out)(attend(q, k, v, causal=False))


class Separate(nn.Module):
    """Four layers of these names."""

    def __init__(
        self, width: int, heads: int, names: tuple[str, ...], scale: float | None
    ) -> None:
        super().__init__()
        self.heads = heads
        self.names = names
        self.scale = scale
        for name in names:
            layer = nn.Linear(width, width, bias=False)
            if name == "to_out.0":
                self.to_out = nn.ModuleList([layer, nn.Dropout(0.1)])
            else:
                self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        *inputs, out = (self.get_submodule(name) for name in self.names)
        q, k, v = (split_heads(layer(x), self.heads) for layer in inputs)
        return out(attend(q, k, v, causal=False, scale=self.scale))


def cases() -> Iterator[Case]:
    for name, layout, joined, out in (
        ("qkv", "qkv", "qkv", "proj"),
        ("wqkv", "wqkv", "Wqkv", "out_proj"),
        ("wqkv-wo", "wqkv", "Wqkv", "Wo"),
        ("to-qkv", "to_qkv", "to_qkv", "to_out.0"),
    ):
        yield Case(
            name,
            layout,
            lambda joined=joined, out=out: Joined(8, 2, joined, out),
            *(8, 8, 2, TOKENS),
            causal=False,
        )
    for name, layout, names, scale in (
        ("to-q", "to_q", ("to_q", "to_k", "to_v", "to_out.0"), None),
        ("q-k-v-o", "q_k_v_o", ("q", "k", "v", "o"), 1.0),
        ("gguf", "gguf", ("attn_q", "attn_k", "attn_v", "attn_output"), None),
    ):
        yield Case(
            name,
            layout,
            lambda names=names, scale=scale: Separate(8, 2, names, scale),
            *(8, 8, 2, TOKENS),
            causal=False,
            qkv_bias=False,
            out_bias=False,
            scale=scale,
        )
