"""One case of the layouts: a pair of files.

  NAME.safetensors or NAME.pt  the state dict as users of the class have it,
                               often of a whole small model
  NAME.expected.safetensors    "input" (B, T, d_in) and "output" (B, T, d_out)
                               of one attention module in it, without dropout

The metadata of the second describe the module, all as strings:

  class, layout                Python's class, and the name of our layout
  file, prefix                 the first file, and where in it the module is
  d_in, d_out                  d_out: of all heads together
  num_heads, num_kv_heads, context_length
  causal, qkv_bias             true or false
  out_proj, out_bias           true if there is an output projection, and if
                               it has a bias
  scale                        of the scores; "" for 1 / sqrt(head dimension)
  window                       Swin's: the side of its windows, by whose table
                               it adds a bias
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_attention_reference import ExportError, safetensors_file
from torch_attention_reference.recording import draw

BATCH = 2
TOKENS = 5
SEED = 123


def call(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)


def write_state(state: Mapping[str, Tensor], path: Path) -> None:
    """Writes a state dict by torch.save or as a safetensors file."""
    if path.suffix == ".pt":
        torch.save(state, path)
    else:
        safetensors_file.write(path, state, {"format": "pt"})


def save_module(module: nn.Module, path: Path) -> None:
    write_state(module.state_dict(), path)


@dataclass(frozen=True)
class Case:
    """A model, the attention module in it, and a description of that module."""

    name: str
    layout: str
    build: Callable[[], nn.Module]
    d_in: int
    d_out: int
    heads: int
    context_length: int
    module: str = ""  # path of the attention in the model
    kv_heads: int = 0  # 0: as many as heads
    causal: bool = True
    qkv_bias: bool = True
    out_proj: bool = True
    out_bias: bool = True
    scale: float | None = None
    window: int = 0  # the side of Swin's
    prefix: str | None = None  # path in the file, if another
    suffix: str = ".safetensors"
    run: Callable[[nn.Module, Tensor], Tensor] = call
    save: Callable[[nn.Module, Path], None] = save_module

    @property
    def file(self) -> str:
        return self.name + self.suffix

    @property
    def expected_file(self) -> str:
        return f"{self.name}.expected.safetensors"

    def write(self, folder: Path) -> None:
        """Writes both files."""
        model = self.build().eval()
        generator = torch.Generator().manual_seed(SEED)
        fill(model, generator)
        module = model.get_submodule(self.module)
        tokens = self.window**2 or TOKENS
        x = draw((BATCH, tokens, self.d_in), torch.float32, generator)
        # With gradients: under no_grad torch.nn.MultiheadAttention computes
        # in another way.
        output = self.run(module, x).detach()
        if output.shape != (BATCH, tokens, self.d_out):
            shape = tuple(output.shape)
            raise ExportError(f"{self.name}: the output is {shape}")
        self.save(model, folder / self.file)
        safetensors_file.write(
            folder / self.expected_file,
            {"input": x, "output": output},
            self.metadata(module),
        )

    def metadata(self, module: nn.Module) -> dict[str, str]:
        values = {
            "class": type(module).__name__,
            "layout": self.layout,
            "file": self.file,
            "prefix": self.module if self.prefix is None else self.prefix,
            "d_in": self.d_in,
            "d_out": self.d_out,
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads or self.heads,
            "context_length": self.context_length,
            "causal": self.causal,
            "qkv_bias": self.qkv_bias,
            "out_proj": self.out_proj,
            "out_bias": self.out_proj and self.out_bias,
            "scale": "" if self.scale is None else repr(self.scale),
        }
        if self.window:
            values["window"] = self.window
        return {key: as_string(value) for key, value in values.items()}


def as_string(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def fill(model: nn.Module, generator: torch.Generator) -> None:
    """Draws every weight again: many initial ones are all zero or all one."""
    with torch.no_grad():
        for parameter in model.parameters():
            values = draw(parameter.shape, torch.float64, generator)
            parameter.copy_(0.4 * values)
