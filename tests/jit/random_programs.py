"""Random programs with attention, from a grammar.

`program(seed)` returns the source of a `torch.nn.Module`, which may be scripted
or traced: products of queries and keys, scales, masks, casts, branches, loops
and changes in place, as models have them and as they hardly ever do.
"""

import random

HEADS = 2
WIDTH = 8

FILLS = ["float('-inf')", "-1e9", "-1e30", "-3.4e38", "-1e4", "-1e6", "-300.0",
         "-60.0", "-3.0", "self.low", "self.high"]
# Larger numbers would round the scores away where they are added to all scores
# of a query.
BIASES = ["float('-inf')", "-1e30", "-3.4e38", "-60.0", "-3.0"]
# Without the lowest number: where all keys of a query have it, LibTorch's
# gradients belong to weights that do not add up to 1.
SDPA_BIASES = ["float('-inf')", "-60.0", "-3.0"]


class Writer:
    """Writes one program."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.indent = 2
        self.count = 0
        self.init = []
        # (..., T, T) of the scores, without the last two: batch and heads, each
        # by itself or folded (F); nothing: some other
        self.leading = "B"
        # whether scores have been filled or biased
        self.filled = False
        # whether scores are viewed, and the sizes that weights get back
        self.in_view = False
        self.back = None
        # whether the product is read again
        self.has_first = False

    def one(self, *choices):
        return self.random.choice(choices)

    def chance(self, probability):
        return self.random.random() < probability

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def line(self, text):
        self.lines.append("    " * self.indent + text)

    def block(self, head, *body):
        self.line(head)
        self.indent += 1
        for text in body:
            self.line(text)
        self.indent -= 1

    # Masks: each writes lines, and returns a bool (T, T) that is true where
    # keys are hidden, or something that broadcasts to the scores.

    def mask(self):
        kind = self.one(
            self.later, self.window, self.chunk, self.prefix, self.global_keys,
            self.triangle, self.buffer, self.padding, self.data, self.stored)
        hidden = kind()
        if self.chance(0.2):
            hidden = self.edited(hidden)
        if self.chance(0.15):
            other = self.one(self.later, self.padding, self.window)()
            hidden = f"({hidden} {self.one('|', '&')} {other})"
        return hidden

    def distances(self):
        i = self.name("i")
        self.line(f"{i} = torch.arange(T)")
        return f"({i}[:, None] - {i}[None, :])"

    def later(self):
        return f"({self.distances()} < 0)"

    def window(self):
        d = self.distances()
        size = self.one(1, 2, 3, 5, 7, 11)
        return f"(({d} < 0) | ({d} >= {size}))"

    def chunk(self):
        i = self.name("i")
        size = self.one(2, 4, 6, 8)
        self.line(f"{i} = torch.div(torch.arange(T), {size},"
                  " rounding_mode='floor')")
        return f"({i}[:, None] != {i}[None, :])"

    def prefix(self):
        i = self.name("i")
        self.line(f"{i} = torch.arange(T)")
        return (f"(({i}[None, :] > {i}[:, None]) &"
                f" ({i}[None, :] >= {self.one(1, 3, 6, 9)}))")

    def global_keys(self):
        return (f"(({self.window()}) & (torch.arange(T)[None, :] %"
                f" {self.one(3, 7)} != 0))")

    def triangle(self):
        return self.one(
            "torch.ones(T, T).triu(1).to(torch.bool)",
            "torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)",
            "(torch.tril(torch.ones(T, T)) == 0)",
            "torch.ones(T, T).triu(2).to(torch.bool)",
            "(torch.ones(T, T).tril(-1) > 0)")

    def buffer(self):
        name = self.name("mask")
        self.init.append(
            f"self.register_buffer('{name}', random_mask({self.one(*range(9))}))")
        return self.one(f"self.{name}[:T, :T]", f"self.{name}.to(torch.bool)[:T, :T]")

    def padding(self):
        m = self.name("m")
        self.line(f"{m} = (torch.arange(T) >= T - {self.one(1, 2, 4)})"
                  "[None, :].expand(B, T)")
        return f"{m}{self.key_index()}"

    def key_index(self):
        return {"": "[0]", "B": "[:, None, :]", "BH": "[:, None, None, :]",
                "F": f".repeat_interleave({HEADS}, 0)[:, None, :]"}[self.leading]

    def data(self):
        return f"(x.detach().sum(-1) > {self.one(0.0, 1.5)}){self.key_index()}"

    def stored(self):
        name = self.name("state")
        self.init.append(f"self.register_buffer('{name}', torch.zeros(1, 1))")
        self.line(f"self.{name} = {self.later()}.to(torch.float32)")
        return f"(self.{name} > 0)"

    def edited(self, hidden):
        m = self.name("m")
        self.line(f"{m} = {hidden}.clone()")
        self.line(self.one(
            f"{m}[..., :2] = False", f"{m}[..., -1:] = True",
            f"{m}.logical_not_()", f"{m}[..., :1, :] = True",
            f"{m}.select(-1, 0).fill_(False)"))
        return m

    # Steps of the scores `s`.

    def step(self):
        kinds = [
            (6, self.factor), (8, self.fill), (4, self.bias), (1, self.cap),
            (1, self.cast), (3, self.branch), (1, self.loop), (1, self.odd),
            (2, self.view)]
        kind = self.random.choices(
            [k for _, k in kinds], [w for w, _ in kinds])[0]
        kind()

    def factor(self):
        number = self.one(
            "2.5", "0.25", "q.size(-1) ** 0.5", "float(q.size(-1)) ** -0.5",
            "self.scale", "self.temperature", "math.sqrt(q.size(-1))",
            "torch.sqrt(torch.tensor(float(q.size(-1))))", "self.learned",
            "self.per_head", "torch.full((1, 1, 1, 1, 1), 0.5)", "-0.5")
        rare = number in ("self.learned", "self.per_head", "-0.5") or \
            "full" in number
        # The gradient of a factor of fills is rounding noise times the fill.
        if rare and (self.filled or self.chance(0.7)):
            number = "0.5"
        if self.chance(0.1):
            d = self.name("d")
            self.line(f"{d} = torch.tensor([2.0])")
            self.line(f"s = s {self.one('*', '/')} {d}")
            self.line(f"{d}.mul_(3.0)")
            return
        operator = self.one("*", "/", "*=", "/=")
        if operator == "*" and self.chance(0.3):
            self.line(f"s = {number} * s")
        elif operator in ("*", "/"):
            self.line(f"s = s {operator} {number}")
        else:
            self.line(f"s {operator} {number}")

    def fill(self):
        self.filled = True
        hidden = self.mask()
        fill = self.one(*FILLS)
        self.line(self.one(
            f"s = s.masked_fill({hidden}, {fill})",
            f"s = s.masked_fill({hidden}, {fill})",
            f"s.masked_fill_({hidden}, {fill})",
            f"s = torch.where({hidden}, {fill}, s)",
            f"s = torch.where(torch.logical_not({hidden}), s, {fill})"))

    def bias(self):
        self.filled = True
        hidden = self.mask()
        b = self.name("b")
        self.line(self.one(
            f"{b} = torch.zeros_like({hidden}, dtype=x.dtype)"
            f".masked_fill({hidden}, {self.one(*BIASES)})",
            f"{b} = {hidden}.to(x.dtype) * {self.one('-1e30', '-1e2', '-2.0')}",
            f"{b} = -0.1 * {self.distances()}.abs()",
            f"{b} = self.learned_bias[:T, :T]",
            f"{b} = {hidden}"))
        self.line(self.one(
            f"s = s + {b}", f"s += {b}", f"s = {b} + s",
            f"s = torch.add(s, {b}, alpha={self.one('1', '2')})"))

    def cap(self):
        c = self.one("2.0", "30.0")
        self.line(f"s = {c} * torch.tanh(s / {c})")

    def cast(self):
        self.line(self.one(
            "s = s.float()", "s = s.double()", "s = s.to(x.dtype)",
            "s = s.type_as(x)", "s = s.to(torch.int32).to(x.dtype)",
            "s = (s > 0).to(x.dtype)", "s = s.to(torch.bfloat16).to(x.dtype)"))

    def branch(self):
        condition = self.one(
            "self.flag", "self.training", "x.size(1) > 4",
            "float(x.sum()) > 0.0")
        self.line(f"if {condition}:")
        self.branch_body()
        if self.chance(0.3):
            self.line(f"elif x.size(0) > {self.one(1, 2)}:")
            self.branch_body()
        if self.chance(0.4):
            self.line("else:")
            self.branch_body()

    def branch_body(self):
        self.indent += 1
        self.line("pass")
        if self.chance(0.3):
            self.line(self.one("s.mul_(0.5)", "noise.div_(2.0)", "pass"))
        else:
            for _ in range(self.one(1, 1, 2)):
                self.step()
        self.indent -= 1

    # The sizes of the scores by `leading`.
    SIZES = {"B": ["B, T, T", "-1, T, T"],
             "BH": [f"B, {HEADS}, T, T", f"B, -1, T, T", f"-1, {HEADS}, T, T"],
             "F": [f"B * {HEADS}, T, T", "-1, T, T"]}
    OTHER_SIZES = {"B": ["1, B, T, T", "B, 1, T, T", "B * T, T", "1, B * T, T"],
                   "BH": [f"B, 1, {HEADS}, T, T", f"B * {HEADS}, T, T",
                          f"B, {HEADS}, 1, T, T", f"B, {HEADS} * T, T"],
                   "F": [f"B, {HEADS}, T, T", f"B, {HEADS}, T, T",
                         f"{HEADS}, B, T, T"]}

    def view(self):
        """Views the scores with other dimensions, and perhaps back."""
        before = self.leading
        if before not in self.SIZES or self.in_view:
            return
        sizes = self.one(*self.OTHER_SIZES[before])
        self.line(f"s = s.{self.one('view', 'reshape')}({sizes})")
        self.leading = "BH" if sizes == f"B, {HEADS}, T, T" else ""
        self.in_view = True
        for _ in range(self.one(0, 1, 1, 2)):
            self.step()
        back = self.one(*self.SIZES[before])
        if self.indent == self.outer_indent and self.chance(0.3):
            self.back = back
            return
        self.line(f"s = s.{self.one('view', 'reshape')}({back})")
        self.leading = before
        self.in_view = False

    def loop(self):
        self.block(f"for _ in range({self.one(1, 2, 3)}):", self.one(
            "s = s * 0.7", "s.mul_(0.7)", "s = s + noise[:1, :1].sum()"))

    def odd(self):
        self.line(self.one(
            "s[..., :1] = 0.0", "s = s + 1.5", "s = s.detach()",
            "s.select(-1, 0).add_(1.0)", "k.mul_(2.0)", "q = q + 1.0",
            "s = s.clone()", "s = s.contiguous()", "s = s - 0.5",
            "s = torch.clamp(s, -5.0, 5.0)", "x = x * 1.5"))

    # The parts of a program.

    def project(self):
        layout = self.one(
            "flat", "heads", "heads", "heads", "folded", "matrix", "vector")
        if layout == "vector" and self.chance(0.7):
            layout = "flat"
        for part in "qkv":
            self.line(f"{part} = self.{part}(x)" if self.chance(0.8)
                      else f"{part} = x * {self.one('1.0', '0.5')}")
        if layout == "heads":
            self.leading = "BH"
            for part in "qkv":
                self.line(f"{part} = {part}.view(B, T, {HEADS}, -1)"
                          ".transpose(1, 2)")
        elif layout == "folded":
            self.leading = "F"
            for part in "qkv":
                self.line(f"{part} = {part}.view(B, T, {HEADS}, -1)"
                          f".transpose(1, 2).reshape(B * {HEADS}, T, -1)")
        elif layout == "matrix":
            self.leading = ""
            for part in "qkv":
                self.line(f"{part} = {part}[0]")
        elif layout == "vector":
            self.line("q = q[:, 0]")
            self.line("q = q[0]")
            self.line("k = k[0]")
            self.line("v = v[0]")
        return layout

    def product(self, layout):
        choices = ["s = torch.matmul(q, k.transpose(-2, -1))",
                   "s = q @ k.transpose(-2, -1)"]
        if layout in ("flat", "folded"):
            choices += ["s = torch.bmm(q, k.transpose(1, 2))",
                        "s = torch.baddbmm(noise[:1, :1], q, k.transpose(1, 2),"
                        " beta=0.5, alpha=0.3)",
                        "s = torch.einsum('btd,bsd->bts', q, k)"]
        if layout == "heads":
            choices += ["s = torch.einsum('bhtd,bhsd->bhts', q, k)"]
        if layout == "matrix":
            choices += ["s = torch.mm(q, k.t())"]
        self.line(self.one(*choices))
        # Emformer reads the sizes and the dtype of its scores.
        if layout != "vector" and self.chance(0.2):
            self.has_first = True
            self.line("first = s")
            if self.chance(0.5):
                self.line("noise = noise * float(first.size("
                          f"{self.one('-1', '-2', '0', '1')}))")
            if self.chance(0.5):
                self.line(f"s = first.{self.one('float', 'double')}()")

    def softmax(self, layout):
        rank = {"flat": 3, "heads": 4, "folded": 3, "matrix": 2,
                "vector": 1}[layout]
        dim = self.one("-1", "-1", "-1", str(rank - 1))
        if self.chance(0.05):
            dim = "0"
        self.line(self.one(
            f"w = torch.softmax(s, dim={dim})",
            f"w = F.softmax(s, dim={dim})",
            f"w = F.softmax(s, dim={dim}, dtype=torch.float64).to(x.dtype)"))
        if self.has_first:
            self.line(f"w = w.{self.one('type_as(first)', 'to(first.dtype)')}")
        for _ in range(2):
            if self.chance(0.2):
                self.line(self.one(
                    "w = self.dropout(w)",
                    "w = F.dropout(w, p=0.0, training=self.training)",
                    "w = w.type_as(v)", "w = w * 1.0",
                    "w.mul_(0.9)"))
        if self.back:
            self.line(f"w = w.view({self.back})")

    def output(self, layout):
        choices = ["y = torch.matmul(w, v)", "y = w @ v"]
        if layout in ("flat", "folded"):
            choices += ["y = torch.bmm(w, v)",
                        "y = torch.einsum('bts,bsd->btd', w, v)"]
        if layout == "heads":
            choices += ["y = torch.einsum('bhts,bhsd->bthd', w, v)"
                        ".transpose(1, 2)"]
        self.line(self.one(*choices))
        if self.chance(0.1):
            self.line("y = y + w.sum() * 0.01")
        if self.chance(0.15):
            self.line(self.one("y += 1.0", "y.mul_(2.0)", "v.add_(1.0)"))

    def sdpa(self, layout):
        arguments = ["q", "k", "v"]
        if self.chance(0.2):
            arguments.append("is_causal=True")
        elif self.chance(0.8):
            hidden = self.mask()
            m = self.name("m")
            self.line(self.one(
                f"{m} = torch.logical_not({hidden})",
                f"{m} = torch.zeros_like({hidden}, dtype=x.dtype)"
                f".masked_fill({hidden}, {self.one(*SDPA_BIASES)})"))
            arguments.append(f"attn_mask={m}")
        if self.chance(0.3):
            arguments.append(f"scale={self.one('0.3', '1.0')}")
        self.line(f"y = F.scaled_dot_product_attention({', '.join(arguments)})")

    def attention(self):
        layout = self.project()
        if layout != "vector" and self.chance(0.15):
            self.sdpa(layout)
            return
        no_grad = self.chance(0.05)
        if no_grad:
            self.line("with torch.no_grad():")
            self.indent += 1
        if layout in ("flat", "heads") and self.chance(0.05):
            self.line("q = q[:1]")
        self.product(layout)
        self.outer_indent = self.indent
        for _ in range(self.random.choice([0, 1, 1, 2, 2, 3, 4])):
            self.step()
        if no_grad and self.chance(0.5):
            self.indent -= 1
            no_grad = False
        self.softmax(layout)
        if no_grad:
            self.indent -= 1
        self.output(layout)

    def write(self, name):
        self.line("B, T, C = x.shape")
        self.line("noise = torch.ones(T, T, dtype=x.dtype)")
        nested = self.one("", "", "", "", "if", "for")
        if nested:
            self.line("y = x")
            self.line("if x.size(1) > 3:" if nested == "if"
                      else "for _ in range(2):")
            self.indent += 1
        self.attention()
        if nested:
            self.indent -= 1
        self.line("return y + noise.sum() * 0.001")
        return "\n".join([
            f"class {name}(Base):",
            "    def __init__(self):",
            "        super().__init__()",
            *("        " + line for line in self.init),
            "",
            "    def forward(self, x):",
            *self.lines,
            ""])


HEADER = f'''
import math
import torch
import torch.nn.functional as F
from torch import nn


def random_mask(seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(80, 80, generator=generator) > 0.6
    return torch.ones(80, 80).triu(1).bool() if seed < 3 else mask


class Base(nn.Module):
    flag: bool

    def __init__(self):
        super().__init__()
        self.q = nn.Linear({WIDTH}, {WIDTH})
        self.k = nn.Linear({WIDTH}, {WIDTH})
        self.v = nn.Linear({WIDTH}, {WIDTH})
        self.dropout = nn.Dropout(0.0)
        self.scale = 0.4
        self.low = -1e8
        self.high = -3.0
        self.flag = True
        self.register_buffer("temperature", torch.tensor(1.7))
        self.learned = nn.Parameter(torch.tensor(0.6))
        self.per_head = nn.Parameter(torch.rand({HEADS}, 1, 1))
        self.learned_bias = nn.Parameter(torch.rand(80, 80))
'''


def program(seed, name):
    """Returns the source of a class of this name."""
    return Writer(seed).write(name)
