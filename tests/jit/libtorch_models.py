"""Models of LibTorch's attention: its operator, its module and its layers."""

from typing import Optional

import torch
import torch.nn.functional as F
from model_case import Case, trace
from torch import nn


class Sdpa(nn.Module):
    def __init__(self, size, dropout=0.0, causal=False):
        super().__init__()
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.heads = size.heads
        self.dropout = dropout
        self.causal = causal

    def forward(self, x, mask: Optional[torch.Tensor] = None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            dropout_p=self.dropout,
            is_causal=self.causal,
        )
        return y.transpose(1, 2).flatten(2)


class Cross(nn.Module):
    """nn.MultiheadAttention whose weights nobody reads."""

    def __init__(self, size, mask=None):
        super().__init__()
        self.attention = nn.MultiheadAttention(
            size.width, size.heads, batch_first=True
        )
        self.register_buffer("hidden", mask)

    def forward(self, x):
        return self.attention(
            x, x, x, need_weights=False, attn_mask=self.hidden
        )[0]


class Masked(nn.Module):
    """A layer whose masks are its own."""

    def __init__(self, layer, masks):
        super().__init__()
        self.layer = layer
        self.names = list(masks)
        for name, mask in masks.items():
            self.register_buffer(name, mask)

    def forward(self, x):
        return self.layer(x, **{n: getattr(self, n) for n in self.names})


class Weights(nn.Module):
    """nn.MultiheadAttention whose weights are returned."""

    def __init__(self, size):
        super().__init__()
        self.attention = nn.MultiheadAttention(
            size.width, size.heads, batch_first=True
        )

    def forward(self, x):
        return self.attention(x, x, x)


def libtorch(size):
    B, T, C, H = size.batch, size.tokens, size.width, size.heads
    x = torch.randn(B, T, C)

    def case(name, module, swapped, what, *, grad=True, script=False, left=0):
        module.eval()
        made = torch.jit.script(module) if script else trace(
            module, x, grad=grad
        )
        return Case(name, made, {"x": x}, swapped, what, left)

    sdpa = "scaled_dot_product_attention"
    later = torch.ones(T, T).triu(1).bool()
    yield case("sdpa", Sdpa(size), 1, sdpa)
    yield case("sdpa-causal", Sdpa(size, causal=True), 1, f"{sdpa}, causal")
    # The type of an attribute or an argument is not known.
    yield case(
        "sdpa-scripted",
        Sdpa(size),
        1,
        f"{sdpa}, with a mask, with dropout",
        script=True,
    )
    visible = torch.rand(B, 1, T, T) > 0.3
    visible[..., 0] = True
    for name, mask in (
        ("sdpa-mask", visible),
        ("sdpa-added", torch.randn(T, T)),
    ):
        yield Case(
            name,
            trace(Sdpa(size), x, mask),
            {"a_x": x, "b_mask": mask},
            1,
            f"{sdpa}, with a mask",
        )
    yield case("multihead", Cross(size), 1, sdpa)
    yield case("multihead-causal", Cross(size, later), 1, f"{sdpa}, with a mask")
    yield case("multihead-inference", Cross(size), 1, sdpa, grad=False)
    yield case("multihead-scripted", Cross(size), 4, sdpa, script=True)
    yield case("multihead-weights", Weights(size), 0, "", left=1)
    padding = torch.zeros(B, T, dtype=torch.bool)
    padding[0, T // 2 :] = True
    both = {"src_mask": later, "src_key_padding_mask": padding}
    for name, masks in (
        ("causal", {"src_mask": later}),
        ("padded", {"src_key_padding_mask": padding}),
        ("both", both),
    ):
        yield case(
            f"layer-inference-{name}",
            Masked(
                nn.TransformerEncoderLayer(C, H, 2 * C, 0.0, batch_first=True),
                masks,
            ),
            1,
            f"{sdpa}, with a mask",
            grad=False,
        )
    layer = nn.TransformerEncoderLayer(C, H, 2 * C, 0.0, batch_first=True)
    yield case("layer", layer, 1, sdpa)
    yield case("layer-inference", layer, 1, sdpa, grad=False)
    first = nn.TransformerEncoderLayer(
        C, H, 2 * C, 0.0, activation="gelu", batch_first=True, norm_first=True
    )
    yield case("layer-first", first, 1, sdpa, grad=False)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    yield case("encoder", encoder, 2, sdpa)
    yield case("encoder-inference", encoder, 2, sdpa, grad=False)
    decoder = nn.TransformerDecoderLayer(C, H, 2 * C, 0.0, batch_first=True)
    yield Case(
        "decoder",
        trace(decoder.eval(), x, x),
        {"a_x": x, "b_x": x.clone()},
        2,
        sdpa,
    )
