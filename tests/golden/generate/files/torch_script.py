"""TorchScript archives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Optional

import torch
from torch import Tensor, nn
from torch_attention_reference.archives import scripted

from ..script_class import of_a_script
from .tensors import Model, every_dtype, ramp
from .torch_save import rewritten
from .weight_file import Content, WeightFile


def weight_files() -> Iterator[WeightFile]:
    script = torch.jit.script
    yield of("traced", lambda: traced(Model(), 4, 4))
    yield of("scripted", lambda: script(Model()))
    yield of("traced-model", lambda: traced(Outer(), 4, 4))
    yield of("scripted-model", lambda: script(Outer().eval()))
    yield of("scripted-attributes", lambda: script(Attributes()))
    yield of("scripted-tied", lambda: script(Tied()))
    yield of("scripted-dtypes", scripted_dtypes)
    # A module with a state of its own is closed to a reader that runs no code,
    # and a frozen module has its weights among the constants of its code.
    yield refused("scripted-setstate", lambda: script(Packed()))
    yield refused("scripted-setstate-child", lambda: script(WithPacked()))
    yield refused(
        "scripted-frozen", lambda: torch.jit.freeze(script(Model().eval()))
    )


def of(name: str, make: Callable[[], torch.jit.ScriptModule]) -> WeightFile:
    def content() -> Content:
        module = make()
        return archived(module), module.state_dict()

    return f"{name}.pt", content


def refused(
    name: str, make: Callable[[], torch.jit.ScriptModule]
) -> WeightFile:
    return f"{name}.pt", lambda: (archived(make()), None)


def archived(module: torch.jit.ScriptModule) -> bytes:
    """Drops the debug records, which hold file names of this machine."""
    return rewritten(
        scripted(module),
        lambda name, data: None if name.endswith(".debug_pkl") else data,
    )


def traced(module: nn.Module, *shape: int) -> torch.jit.ScriptModule:
    return torch.jit.trace(module.eval(), (torch.ones(*shape),))


def scripted_dtypes() -> torch.jit.ScriptModule:
    module = nn.Module()
    for name, tensor in every_dtype().items():
        module.register_buffer(f"buffer_{name}", tensor)
    return torch.jit.script(module)


# --- Modules ---------------------------------------------------------------


@of_a_script
class Outer(nn.Module):
    """Model below a prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4, bias=False)
        self.embed.weight.data = ramp(4, 4, start=0.5)
        self.blocks = nn.ModuleList(Model() for _ in range(2))
        self.blocks[1].linear.weight.data += 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.blocks[0](x) + self.blocks[1](x)


@of_a_script
class Packed(nn.Module):
    """Has a state of its own, which only its code can read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ramp(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight

    @torch.jit.export
    def __getstate__(self) -> tuple[Tensor, bool]:
        return self.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[Tensor, bool]) -> None:
        self.weight = state[0]
        self.training = state[1]


@of_a_script
class WithPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.linear.weight.data = ramp(2, 2)
        self.linear.bias.data = ramp(2)
        self.packed = Packed()

    def forward(self, x: Tensor) -> Tensor:
        return self.packed(self.linear(x))


@of_a_script
class Attributes(nn.Module):
    """Attributes of many types; the tensors among them are its state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(ramp(2, 3))
        self.frozen = nn.Parameter(ramp(2), requires_grad=False)
        self.register_buffer("kept", ramp(3))
        self.register_buffer("dropped", ramp(2, 2), persistent=False)
        self.plain = ramp(4)
        attribute = torch.jit.Attribute
        self.maybe = attribute(ramp(1), Optional[Tensor])  # noqa: UP045
        self.none = attribute(None, Optional[Tensor])  # noqa: UP045
        self.table = attribute({"x": ramp(2)}, dict[str, Tensor])
        self.tensors = attribute([ramp(2), ramp(3)], list[Tensor])
        self.numbers = attribute([1, 2, 3], list[int])
        self.pair = attribute((1, "one"), tuple[int, str])
        self.text = "text"
        self.rate = 0.5

    def forward(self, x: Tensor) -> Tensor:
        maybe = self.maybe
        if maybe is not None and self.none is None:
            x = x + maybe * self.rate + self.numbers[0] + self.pair[0]
        x = x + self.tensors[0].sum() + self.table["x"].sum() + len(self.text)
        x = x + self.kept.sum() + self.dropped.sum() + self.plain.sum()
        return x @ self.weight + self.frozen.sum()


@of_a_script
class Tied(nn.Module):
    """Two names of one parameter, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.embed.weight.data = ramp(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("view", self.embed.weight.data.t()[1:3])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + self.view.sum()
