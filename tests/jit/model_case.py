"""A model with attention, and what is to be found in it."""

import dataclasses

import torch


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
    # The report's words for the first attention.
    what: str
    left_alone: int = 0
    # Drops weights: its outputs differ from call to call.
    random: bool = False


def trace(module, *inputs, grad=True):
    with torch.set_grad_enabled(grad):
        return torch.jit.trace(module, inputs, check_trace=False)
