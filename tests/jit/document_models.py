"""Models of the documents, and others that compute attention in their ways."""

import dataclasses

import torch
import torch.nn.functional as F
from model_case import Case, trace
from torch import nn
from torch_attention_reference.classes import (
    CausalAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV2,
)


class Heads(MultiHeadAttention):
    """The book's class, written so that torch.jit.script compiles it."""

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
    """The book's attention, scaled by a size that is read from a tensor."""

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


CAUSAL = "attention with a mask"
DROPPING = "attention with a mask and dropout"


def case(
    x,
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


def book_classes(size, x):
    T, C, H = size.tokens, size.width, size.heads
    D = C // H
    yield case(x, "causal", CausalAttention(C, C, T + 2, 0.1), 1, CAUSAL)
    yield case(
        x,
        "causal-training",
        CausalAttention(C, C, T + 2, 0.1),
        1,
        DROPPING,
        eval_=False,
        random=True,
    )
    yield case(
        x,
        "unmasked",
        CausalAttention(C, C, T, 0.0, causal=False),
        1,
        "attention",
    )
    wrapper = MultiHeadAttentionWrapper(C, D, T, 0.0, H)
    yield case(x, "wrapper", wrapper, H, CAUSAL)
    yield case(x, "heads", MultiHeadAttention(C, C, T + 2, 0.1, H), 1, CAUSAL)
    yield case(
        x,
        "heads-training",
        MultiHeadAttention(C, C, T, 0.2, H),
        1,
        DROPPING,
        eval_=False,
        random=True,
    )
    yield case(
        x,
        "heads-training-without-dropout",
        MultiHeadAttention(C, C, T, 0.0, H),
        1,
        CAUSAL,
        eval_=False,
    )
    yield case(
        x,
        "heads-scripted",
        Heads(C, C, T, 0.0, H),
        1,
        DROPPING,
        script=True,
    )
    yield case(x, "self", SelfAttentionV2(C, C), 1, "attention")
    yield case(x, "head", Head(size), 1, CAUSAL)
    yield case(x, "head-scripted", Head(size), 1, CAUSAL, script=True)
    yield case(x, "by-shape", ByShape(size), 1, CAUSAL)
    yield case(x, "by-shape-lowest", ByShape(size, -1e9), 1, CAUSAL)
    frozen = trace(MultiHeadAttention(C, C, T + 2, 0.0, H).eval(), x)
    yield Case("heads-frozen", torch.jit.freeze(frozen), {"x": x}, 1, CAUSAL)


def gpts(size):
    C, H = size.width, size.heads
    ids = torch.randint(0, 64, (size.batch, size.tokens))
    layers = size.layers
    gpt = GPT(size).eval()
    yield Case("gpt", trace(gpt, ids), {"ids": ids}, layers, CAUSAL)
    yield Case(
        "gpt-frozen",
        torch.jit.freeze(trace(gpt, ids)),
        {"ids": ids},
        layers,
        CAUSAL,
    )
    yield Case(
        "gpt-training",
        trace(GPT(size, 0.1).train(), ids),
        {"ids": ids},
        layers,
        DROPPING,
        random=True,
    )
    yield Case(
        "gpt-training-without-dropout",
        trace(GPT(size).train(), ids),
        {"ids": ids},
        layers,
        CAUSAL,
    )
    for name, other in (
        ("gpt-wide", {"width": 2 * C, "heads": 2 * H}),
        ("gpt-deep", {"layers": 2 * layers}),
    ):
        other = dataclasses.replace(size, **other)
        made = trace(GPT(other).eval(), ids)
        yield Case(name, made, {"ids": ids}, other.layers, CAUSAL)
    yield Case(
        "gpt-scripted",
        torch.jit.script(GPT(size, kind=Heads).eval()),
        {"ids": ids},
        layers,
        DROPPING,
    )


def einsums(size, x):
    heads = ("bthd,bshd->bhts", "bhts,bshd->bthd")
    yield case(x, "einsum", Einsum(size, heads), 1, CAUSAL)
    yield case(
        x,
        "einsum-value-first",
        Einsum(
            size,
            ("bihd, bjhd -> bhij", "bjhd, bhij -> bihd"),
            value_first=True,
        ),
        1,
        CAUSAL,
    )
    yield case(
        x,
        "einsum-shared-key",
        Einsum(size, ("bthd,bsd->bhts", "bhts,bsd->bthd"), key_heads=False),
        1,
        CAUSAL,
    )
    yield case(
        x,
        "softcap",
        Einsum(size, heads, softcap=2.0),
        1,
        "attention with a softcap and a mask",
    )
    yield case(
        x,
        "softcap-of-bias",
        Einsum(size, heads, softcap=2.0, biased=True),
        0,
        "",
        left=1,
    )
    yield case(x, "pixels", Pixels(size, False), 1, "attention")
    yield case(x, "pixels-added", Pixels(size, True), 1, "attention with a bias")
    # Each key divides its weights among the queries.
    yield case(
        x,
        "einsum-over-queries",
        Einsum(size, ("bthd,bshd->bhst", "bhst,bshd->bthd")),
        0,
        "",
        left=1,
    )


def masks_as_inputs(size, x):
    B, T, _ = x.shape
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


def documents(size):
    x = torch.randn(size.batch, size.tokens, size.width)
    yield from book_classes(size, x)
    yield from gpts(size)
    yield from einsums(size, x)
    yield from masks_as_inputs(size, x)
