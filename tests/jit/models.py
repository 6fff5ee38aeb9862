"""TorchScript models with attention, and what is to be found in them.

`cases(size)` yields models of the documents, of LibTorch and, where it is
installed, of transformers.
"""

import dataclasses
import importlib.util
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn
from torch_attention_reference.classes import (
    CausalAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV2,
)


@dataclasses.dataclass
class Size:
    batch: int = 2
    tokens: int = 6
    width: int = 32
    heads: int = 4
    layers: int = 2


SMALL = Size()
LARGE = Size(batch=4, tokens=512, width=512, heads=8, layers=2)


@dataclasses.dataclass
class Case:
    name: str
    script: torch.jit.ScriptModule
    inputs: dict
    swapped: int
    # The kind that the first place is taken for.
    what: str
    left_alone: int = 0
    # Drops weights: its outputs differ from call to call.
    random: bool = False


class Heads(MultiHeadAttention):
    """The book's class, in words that torch.jit.script knows."""

    def forward(self, x):
        b, t, _ = x.shape
        keys = self.W_key(x).view(b, t, self.num_heads, self.head_dim)
        values = self.W_value(x).view(b, t, self.num_heads, self.head_dim)
        queries = self.W_query(x).view(b, t, self.num_heads, self.head_dim)
        scores = queries.transpose(1, 2) @ keys.transpose(1, 2).transpose(2, 3)
        scores.masked_fill_(self.mask.to(torch.bool)[:t, :t], float("-inf"))
        weights = torch.softmax(scores / self.head_dim**0.5, dim=-1)
        context = self.dropout(weights) @ values.transpose(1, 2)
        return self.out_proj(context.transpose(1, 2).reshape(b, t, self.d_out))


class Block(nn.Module):
    """A block of the book's GPT."""

    def __init__(self, size, dropout, kind):
        super().__init__()
        C = size.width
        self.att = kind(
            C, C, size.tokens + 2, dropout, size.heads, qkv_bias=True
        )
        self.ff = nn.Sequential(
            nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C)
        )
        self.norm1 = nn.LayerNorm(C)
        self.norm2 = nn.LayerNorm(C)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        x = x + self.drop(self.att(self.norm1(x)))
        return x + self.drop(self.ff(self.norm2(x)))


class GPT(nn.Module):
    """The book's GPT."""

    def __init__(self, size, dropout=0.0, kind=MultiHeadAttention):
        super().__init__()
        self.tok_emb = nn.Embedding(64, size.width)
        self.pos_emb = nn.Embedding(size.tokens + 2, size.width)
        self.trf_blocks = nn.Sequential(
            *[Block(size, dropout, kind) for _ in range(size.layers)]
        )
        self.final_norm = nn.LayerNorm(size.width)
        self.out_head = nn.Linear(size.width, 64, bias=False)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.tok_emb(ids) + self.pos_emb(positions)
        return self.out_head(self.final_norm(self.trf_blocks(x)))


class Head(nn.Module):
    """Document 004's head: scaled before it is masked, by tril == 0."""

    def __init__(self, size):
        super().__init__()
        C = size.width
        self.query = nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=False)
        T = size.tokens + 2
        self.register_buffer("tril", torch.tril(torch.ones(T, T)))
        self.scale = C**-0.5

    def forward(self, x):
        T = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * self.scale
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return torch.softmax(wei, dim=-1) @ v


class ByShape(nn.Module):
    """As the book's class, but scaled by a size read from a tensor."""

    def __init__(self, size, hidden=-torch.inf):
        super().__init__()
        C = size.width
        self.qkv = nn.Linear(C, 3 * C)
        self.heads = size.heads
        self.hidden = hidden

    def forward(self, x):
        B, T, C = x.shape
        heads = self.qkv(x).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(2, 3) / k.shape[-1] ** 0.5
        later = torch.triu(torch.ones(T, T, device=x.device), 1).bool()
        scores = torch.where(later, self.hidden, scores)
        y = F.softmax(scores, dim=-1) @ v
        return y.transpose(1, 2).reshape(B, T, C)


class Padded(nn.Module):
    """Masks that are inputs: bool, and added."""

    def __init__(self, size, added):
        super().__init__()
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.added = added

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.bmm(q, k.transpose(1, 2)) * 0.25
        if self.added:
            scores = scores + mask
        else:
            scores = scores.masked_fill(mask, -1e9)
        return torch.bmm(F.softmax(scores, dim=-1), v)


class Einsum(nn.Module):
    """Products by torch.einsum, capped scores, and key heads without a name."""

    def __init__(
        self,
        size,
        equations,
        softcap=None,
        key_heads=True,
        value_first=False,
        biased=False,
    ):
        super().__init__()
        C = size.width
        D = C // size.heads
        self.query = nn.Linear(C, C)
        self.key = nn.Linear(C, C if key_heads else D)
        self.value = nn.Linear(C, C if key_heads else D)
        self.heads = size.heads
        self.equations = equations
        self.softcap = softcap
        self.key_heads = key_heads
        self.value_first = value_first
        self.biased = biased

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1))

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.key(x), self.value(x)
        if self.key_heads:
            k, v = self.split(k), self.split(v)
        to_scores, to_output = self.equations
        scores = torch.einsum(to_scores, q, k) / q.shape[-1] ** 0.5
        if self.biased:
            scores = scores + torch.arange(x.shape[1], device=x.device)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        T = x.shape[1]
        later = torch.ones(T, T, device=x.device).triu(1).bool()
        scores = scores.masked_fill(later, -torch.inf)
        factors = (torch.softmax(scores, 3), v)
        if self.value_first:
            factors = factors[::-1]
        y = torch.einsum(to_output, *factors)
        return y.flatten(2)


class Pixels(nn.Module):
    """Attention of image models: keys are (B, D, S) from the beginning, and
    the scale is baddbmm's."""

    def __init__(self, size, added):
        super().__init__()
        self.qkv = nn.Conv1d(size.width, 3 * size.width, 1)
        self.added = added

    def forward(self, x):
        q, k, v = self.qkv(x.transpose(1, 2)).chunk(3, 1)
        q = q.transpose(1, 2)
        if self.added:
            bias = torch.arange(q.shape[1], device=x.device) * 0.1
            scores = torch.baddbmm(bias, q, k, beta=0.5, alpha=0.125)
        else:
            scores = torch.baddbmm(
                torch.empty(1, 1, 1), q, k, beta=0, alpha=0.125
            )
        return torch.bmm(scores.softmax(dim=2), v.transpose(1, 2))


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


def trace(module, *inputs, grad=True):
    with torch.set_grad_enabled(grad):
        return torch.jit.trace(module, inputs, check_trace=False)


def documents(size):
    B, T, C, H = size.batch, size.tokens, size.width, size.heads
    x = torch.randn(B, T, C)
    D = C // H

    def case(
        name,
        module,
        swapped,
        what,
        *,
        eval_=True,
        script=False,
        left=0,
        random=False,
    ):
        module.train(not eval_)
        made = torch.jit.script(module) if script else trace(module, x)
        return Case(name, made, {"x": x}, swapped, what, left, random)

    causal = "attention with a mask"
    dropping = "attention with a mask and dropout"
    yield case("causal", CausalAttention(C, C, T + 2, 0.1), 1, causal)
    yield case(
        "causal-training",
        CausalAttention(C, C, T + 2, 0.1),
        1,
        dropping,
        eval_=False,
        random=True,
    )
    yield case(
        "unmasked",
        CausalAttention(C, C, T, 0.0, causal=False),
        1,
        "attention",
    )
    yield case(
        "wrapper", MultiHeadAttentionWrapper(C, D, T, 0.0, H), H, causal
    )
    yield case("heads", MultiHeadAttention(C, C, T + 2, 0.1, H), 1, causal)
    yield case(
        "heads-training",
        MultiHeadAttention(C, C, T, 0.2, H),
        1,
        dropping,
        eval_=False,
        random=True,
    )
    yield case(
        "heads-training-without-dropout",
        MultiHeadAttention(C, C, T, 0.0, H),
        1,
        causal,
        eval_=False,
    )
    yield case(
        "heads-scripted",
        Heads(C, C, T, 0.0, H),
        1,
        dropping,
        script=True,
    )
    yield case("self", SelfAttentionV2(C, C), 1, "attention")
    yield case("head", Head(size), 1, causal)
    yield case("head-scripted", Head(size), 1, causal, script=True)
    yield case("by-shape", ByShape(size), 1, causal)
    yield case("by-shape-lowest", ByShape(size, -1e9), 1, causal)
    frozen = trace(MultiHeadAttention(C, C, T + 2, 0.0, H).eval(), x)
    yield Case("heads-frozen", torch.jit.freeze(frozen), {"x": x}, 1, causal)
    ids = torch.randint(0, 64, (B, T))
    layers = size.layers
    gpt = GPT(size).eval()
    yield Case("gpt", trace(gpt, ids), {"ids": ids}, layers, causal)
    yield Case(
        "gpt-frozen",
        torch.jit.freeze(trace(gpt, ids)),
        {"ids": ids},
        layers,
        causal,
    )
    yield Case(
        "gpt-training",
        trace(GPT(size, 0.1).train(), ids),
        {"ids": ids},
        layers,
        dropping,
        random=True,
    )
    yield Case(
        "gpt-training-without-dropout",
        trace(GPT(size).train(), ids),
        {"ids": ids},
        layers,
        causal,
    )
    for name, other in (
        ("gpt-wide", {"width": 2 * C, "heads": 2 * H}),
        ("gpt-deep", {"layers": 2 * layers}),
    ):
        other = dataclasses.replace(size, **other)
        made = trace(GPT(other).eval(), ids)
        yield Case(name, made, {"ids": ids}, other.layers, causal)
    yield Case(
        "gpt-scripted",
        torch.jit.script(GPT(size, kind=Heads).eval()),
        {"ids": ids},
        layers,
        dropping,
    )
    heads = ("bthd,bshd->bhts", "bhts,bshd->bthd")
    yield case("einsum", Einsum(size, heads), 1, causal)
    yield case(
        "einsum-value-first",
        Einsum(
            size,
            ("bihd, bjhd -> bhij", "bjhd, bhij -> bihd"),
            value_first=True,
        ),
        1,
        causal,
    )
    yield case(
        "einsum-shared-key",
        Einsum(size, ("bthd,bsd->bhts", "bhts,bsd->bthd"), key_heads=False),
        1,
        causal,
    )
    yield case(
        "softcap",
        Einsum(size, heads, softcap=2.0),
        1,
        "attention with a softcap and a mask",
    )
    yield case(
        "softcap-of-bias",
        Einsum(size, heads, softcap=2.0, biased=True),
        0,
        "",
        left=1,
    )
    yield case("pixels", Pixels(size, False), 1, "attention")
    yield case("pixels-added", Pixels(size, True), 1, "attention with a bias")
    # Each key divides its weights among the queries.
    yield case(
        "einsum-over-queries",
        Einsum(size, ("bthd,bshd->bhst", "bhst,bshd->bthd")),
        0,
        "",
        left=1,
    )
    hidden = torch.rand(B, T, T) > 0.7
    hidden[0, 0] = True
    for name, module, mask, what in (
        ("padded", Padded(size, False), hidden, "attention with a mask"),
        (
            "added",
            Padded(size, True),
            torch.randn(B, T, T),
            "attention with a bias",
        ),
    ):
        yield Case(
            name,
            trace(module, x, mask),
            {"a_x": x, "b_mask": mask},
            1,
            what,
        )


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


def transformers(size):
    import transformers as tf

    ids = torch.randint(0, 64, (size.batch, size.tokens))
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    common = {"vocab_size": 64, "use_cache": False, "return_dict": False}
    bert = {
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": 2 * size.width,
        **common,
    }
    bert["attn_implementation"] = "eager"
    gemma2 = tf.Gemma2Model(
        tf.Gemma2Config(
            num_key_value_heads=size.heads // 2,
            head_dim=size.width // size.heads,
            query_pre_attn_scalar=size.width // size.heads,
            attn_logit_softcapping=2.0,
            **bert,
        )
    )
    yield Case(
        "gemma2-eager",
        trace(gemma2.eval(), ids),
        {"ids": ids},
        size.layers,
        "attention with a softcap and a mask",
    )
    for kind in ("eager", "sdpa"):
        common["attn_implementation"] = bert["attn_implementation"] = kind
        gpt2 = tf.GPT2Model(
            tf.GPT2Config(
                n_embd=size.width,
                n_layer=size.layers,
                n_head=size.heads,
                n_positions=size.tokens + 2,
                **common,
            )
        )
        llama = tf.LlamaModel(
            tf.LlamaConfig(num_key_value_heads=size.heads // 2, **bert)
        )
        encoder = tf.BertModel(
            tf.BertConfig(max_position_embeddings=size.tokens + 2, **bert)
        )
        sdpa = "scaled_dot_product_attention, with a mask"
        causal = "attention with a bias" if kind == "eager" else sdpa
        plain = (
            "attention"
            if kind == "eager"
            else "scaled_dot_product_attention"
        )
        for name, model, inputs, what in (
            ("gpt2", gpt2, {"ids": ids}, causal),
            ("llama", llama, {"ids": ids}, causal),
            ("bert", encoder, {"ids": ids}, plain),
            (
                "bert-mask",
                encoder,
                {"a_ids": ids, "b_mask": mask},
                "attention with a bias" if kind == "eager" else sdpa,
            ),
        ):
            yield Case(
                f"{name}-{kind}",
                trace(model.eval(), *inputs.values()),
                inputs,
                size.layers,
                what,
            )


def has_transformers():
    return importlib.util.find_spec("transformers") is not None


def cases(size):
    torch.manual_seed(1)
    yield from documents(size)
    yield from libtorch(size)
    if has_transformers():
        yield from transformers(size)


