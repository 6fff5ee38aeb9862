"""Random checkpoints: each is read as torch.load reads it, or refused in words.

    python random_checkpoints.py PROGRAM [COUNT [SEED]]

PROGRAM is read_all.cpp. A checkpoint is drawn from a grammar of everything that
lies in real ones: dicts, lists and objects of any class, tensors of every kind,
views that share storages. Tensors have to be equal by their bits; what is not
read has to be named.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import enum
import functools
import io
import pathlib
import random
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from reader import Reader, difference
from torch import Tensor, nn

warnings.simplefilter("ignore")


# --- Classes of checkpoints ------------------------------------------------


class Color(enum.Enum):
    RED = 1
    GREEN = "green"


class Outer:
    class Inner(enum.IntEnum):
        ONE = 1


@dataclasses.dataclass
class Config:
    width: Any
    name: str = "a"


class Slots:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


class State(dict):
    """A dict of a class of its own."""


class Items(list):
    """A list of a class of its own."""


class Own(Tensor):
    """A tensor of a class of its own."""


class Computed:
    """Made by a function with arguments by name."""

    def __new__(cls, *, x: Any = None) -> "Computed":
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"x": getattr(self, "x", 1)}


Pair = collections.namedtuple("Pair", "first second")


def function() -> None:
    pass


# --- The grammar -----------------------------------------------------------

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]

KEYS: list[Any] = [
    "weight",
    "bias",
    "W_query.weight",
    "a",
    "b",
    "layers",
    "0",
    "a.b",
    "é\u202e",
    "x\x1b[31m\n",
    "",
    "state_dict",
    "optimizer",
    "_extra_state",
    *range(3),
    True,
    None,
    (1, 2),
    1.5,
    b"bytes",
]


class Grammar:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.made: list[Tensor] = []
        self.objects: list[Any] = []

    def any_of(self, *choices: Callable[[], Any]) -> Any:
        return self.draw.choice(choices)()

    def checkpoint(self) -> Any:
        return self.any_of(
            lambda: self.dict(3),
            lambda: self.state(),
            lambda: {"model_state_dict": self.state(), **self.dict(2)},
            lambda: {"state_dict": self.state(), "config": self.foreign(1)},
            lambda: {**self.state(), "config": self.foreign(1)},
            lambda: [self.value(2) for _ in range(self.draw.randrange(4))],
        )

    def state(self) -> dict[str, Any]:
        names = self.draw.sample(["a.weight", "a.bias", "b", "c.d.e"], 3)
        pairs = [(name, self.tensor()) for name in names]
        state: Any = self.draw.choice([dict, collections.OrderedDict])(pairs)
        if isinstance(state, collections.OrderedDict) and self.draw.random() < 0.5:
            state._metadata = collections.OrderedDict({"": {"version": 1}})
        return state

    def dict(self, depth: int) -> Any:
        keys = self.draw.sample(KEYS, self.draw.randrange(5))
        pairs = [(key, self.value(depth - 1)) for key in keys]
        kind = self.draw.randrange(8)
        if kind == 0:
            return collections.OrderedDict(pairs)
        if kind == 1:
            made: Any = collections.defaultdict(list)
            made.update(pairs)
            return made
        return dict(pairs)

    def value(self, depth: int) -> Any:
        if depth <= 0 or self.draw.random() < 0.3:
            return self.any_of(self.tensor, self.tensor, self.plain, self.odd)
        return self.any_of(
            lambda: self.dict(depth),
            lambda: [self.value(depth - 1) for _ in range(self.draw.randrange(4))],
            lambda: tuple(
                self.value(depth - 1) for _ in range(self.draw.randrange(4))
            ),
            lambda: self.foreign(depth),
            self.tensor,
            self.tensor,
            self.again,
        )

    def again(self) -> Any:
        """A value that the checkpoint has already."""
        if self.objects and self.draw.random() < 0.5:
            return self.draw.choice(self.objects)
        return self.draw.choice(self.made) if self.made else self.tensor()

    def tensor(self) -> Any:
        made = self.any_of(
            self.dense, self.dense, self.view, self.view, self.parameter
        )
        self.made.append(made)
        return made

    def dense(self) -> Tensor:
        shape = [self.draw.randrange(4) for _ in range(self.draw.randrange(4))]
        values = torch.randint(0, 100, shape)
        dtype = self.draw.choice(DTYPES)
        if dtype == torch.bool:
            return values > 50
        return values.to(torch.float32).to(dtype)

    def view(self) -> Tensor:
        strided = [t for t in self.made if t.numel() > 1]
        base = self.draw.choice(strided) if strided else torch.rand(4, 3)
        base = base.detach()
        kind = self.draw.randrange(8)
        if kind == 0:
            return base.reshape(-1)
        if kind == 1 and base.dim() > 1:
            return base.transpose(0, 1)
        if kind == 2 and base.dim() > 0:
            return base[1:]
        if kind == 3 and base.dim() > 0:
            return base[::2]
        if kind == 4:
            return base[:1].expand(3, *base.shape[1:]) if base.dim() else base
        if kind == 5 and base.is_complex():
            return base.conj()
        if kind == 6 and base.is_complex():
            return base.conj().imag
        if kind == 7:
            return base.clone().resize_(0)
        return base

    def parameter(self) -> Tensor:
        return self.any_of(
            lambda: nn.Parameter(torch.rand(2, 3)),
            lambda: nn.Parameter(torch.rand(2).to(torch.bfloat16), False),
            lambda: nn.Buffer(torch.rand(2)),
            lambda: self.with_attribute(torch.rand(2)),
            lambda: self.with_attribute(nn.Parameter(torch.rand(2))),
        )

    def with_attribute(self, x: Any) -> Any:
        x.kind = self.plain()
        return x

    def odd(self) -> Any:
        """A tensor that cannot be read as it is."""
        x = torch.rand(3, 3)
        return self.any_of(
            lambda: x.to_sparse(),
            lambda: x.to_sparse_csr(),
            lambda: torch.quantize_per_tensor(x, 0.1, 1, torch.qint8),
            lambda: torch.quantize_per_channel(
                x, torch.ones(3), torch.zeros(3), 0, torch.quint8
            ),
            lambda: torch.empty(3, device="meta"),
            lambda: x.as_subclass(Own),
            lambda: nn.Parameter(x.as_subclass(Own)),
            lambda: nn.Parameter(x.to_sparse()),
            lambda: torch.nested.nested_tensor([x, x[:2]]),
        )

    def plain(self) -> Any:
        return self.draw.choice(
            [
                1,
                -5,
                300,
                1 << 40,
                1 << 80,
                -(1 << 70),
                1.5,
                float("nan"),
                "text",
                "",
                b"bytes",
                None,
                True,
                2 + 3j,
                [],
                (),
                {},
                [1, 2, 3],
                (1, "a"),
                {1, 2},
                frozenset({3}),
                bytearray(b"abc"),
                torch.float16,
                torch.strided,
                torch.device("cpu"),
                torch.Size([2, 3]),
                np.float32(2),
                np.arange(3),
                np.dtype("int8"),
                collections.Counter("abc"),
                datetime.timedelta(1),
                datetime.datetime(2026, 1, 1),
                pathlib.PurePosixPath("a/b"),
                argparse.Namespace(x=1),
            ]
        )

    def foreign(self, depth: int) -> Any:
        """An object of a class that no tensor needs."""
        inner = self.value(depth - 1) if depth > 0 else self.plain()
        made = self.any_of(
            lambda: Color.RED,
            lambda: Outer.Inner.ONE,
            lambda: Config(inner),
            lambda: Slots(inner),
            lambda: State(a=inner, b=1),
            lambda: Items([inner, 2]),
            lambda: Computed(),
            lambda: Pair(inner, 2),
            lambda: function,
            lambda: Config,
            lambda: functools.partial(function, inner),
            lambda: collections.deque([inner], maxlen=3),
            lambda: datetime.timezone.utc,
            lambda: datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
            lambda: range(5),
            lambda: slice(1, 2),
            lambda: io.BytesIO(b"abc"),
            lambda: nn.Linear(2, 2),
            lambda: np.random.RandomState(1),
            lambda: argparse.Namespace(x=inner),
            lambda: torch.Generator().get_state().untyped_storage(),
            self.circle,
        )
        self.objects.append(made)
        return made

    def circle(self) -> Any:
        config = Config(None)
        config.width = [config, self.plain()]
        return config


# --- What is expected ------------------------------------------------------


def is_plain_tensor(x: Any) -> bool:
    return (
        isinstance(x, Tensor)
        and type(x) in (Tensor, nn.Parameter, nn.Buffer)
        and x.layout == torch.strided
        and not x.is_quantized
        and not x.is_nested
        and x.device.type == "cpu"
    )


DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


class Expected:
    """The tensors of a checkpoint by their paths."""

    def __init__(self, value: Any) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.odd: set[str] = set()
        self.twice = False
        self.walk(value, "")

    def walk(self, value: Any, path: str) -> None:
        if isinstance(value, Tensor):
            if is_plain_tensor(value):
                self.twice |= path in self.tensors
                self.tensors[path] = value
            else:
                self.odd.add(path)
        elif type(value) in DICTS:
            for i, (key, item) in enumerate(value.items()):
                self.walk(item, self.join(path, self.key_text(key, i)))
        elif type(value) in (list, tuple):
            for i, item in enumerate(value):
                self.walk(item, self.join(path, str(i)))

    @staticmethod
    def key_text(key: Any, index: int) -> str:
        if isinstance(key, str):
            return key
        if isinstance(key, int):
            return str(int(key))
        return f"?{index}"

    @staticmethod
    def join(path: str, name: str) -> str:
        return f"{path}.{name}" if path else name


# --- Files -----------------------------------------------------------------


def write(value: Any, path: pathlib.Path, draw: random.Random) -> str:
    """Writes a checkpoint in one of the formats, and returns which."""
    kind = draw.choice(["zip", "zip", "zip", "deflated", "newline", "old"])
    protocol = draw.choice([2, 2, 3, 4, 5])
    torch.save(
        value,
        path,
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=kind != "old",
    )
    if kind == "deflated":
        with zipfile.ZipFile(path) as old:
            records = [(name, old.read(name)) for name in old.namelist()]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
            for name, data in records:
                new.writestr(name, data)
    if kind == "newline":
        path.write_bytes(path.read_bytes() + b"\n")
    return f"{kind}, protocol {protocol}"


def check(seed: int, reader: Reader, path: pathlib.Path) -> tuple[str, bool]:
    """Returns what is wrong with a checkpoint, and whether it was read."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    value = Grammar(draw).checkpoint()
    try:
        kind = write(value, path, draw)
        value = torch.load(path, weights_only=False)
    except Exception:  # noqa: BLE001: what Python cannot write or read
        return "", False
    expected = Expected(value)
    found, tensors = reader.read(path)
    if "error" in found:
        message = found["error"]
        allowed = (
            (kind.startswith("old") and "before PyTorch 1.6" in message)
            or (expected.twice and "twice" in message)
            or (not expected.tensors and "state dict" in message)
        )
        if any(ord(c) < 32 or c == "\u202e" for c in message):
            return f"{kind}: the message is not escaped: {message!r}", False
        return "" if allowed else f"{kind}: refused: {message}", False
    if set(tensors) != set(expected.tensors):
        wrong = set(tensors) ^ set(expected.tensors)
        return f"{kind}: other tensors: {wrong} in {found}", False
    for name, tensor in expected.tensors.items():
        problem = difference(tensors[name], tensor)
        if problem:
            return f"{kind}: {name!r} {problem}", False
    if set(found["unreadable"]) != expected.odd:
        return f"{kind}: unreadable: {found}, expected {expected.odd}", False
    return "", True


def main() -> None:
    program = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    wrong = read = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "checkpoint.pt"
        reader = Reader(program, pathlib.Path(folder))
        for seed in range(first, first + count):
            problem, was_read = check(seed, reader, path)
            read += was_read
            if problem:
                wrong += 1
                print(f"checkpoint {seed}: {problem[:1000]}")
    print(f"{count} checkpoints: {read} read and equal, {wrong} wrong")
    if wrong or read < count // 3:
        sys.exit(1)


if __name__ == "__main__":
    main()
