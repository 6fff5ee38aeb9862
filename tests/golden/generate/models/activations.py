"""The activations of transformers, by their names in configurations."""

from __future__ import annotations

from pathlib import Path

import torch
from torch_attention_reference import safetensors_file

from ..golden_set import Unavailable

# Names of functions without parameters; src/models computes them.
NAMES = (
    *("gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python"),
    *("gelu_python_tanh", "gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu"),
    *("linear", "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu"),
    *("swish", "tanh"),
)


class Activations:
    """Numbers "x", and for each name what it makes of them, in double."""

    name = "activations"
    files = ("expected.safetensors",)

    def write(self, folder: Path) -> None:
        try:
            from transformers.activations import ACT2FN
        except ImportError as error:
            raise Unavailable(f"needs the package transformers: {error}")
        x = torch.linspace(-12, 12, 193)
        tensors = {name: ACT2FN[name](x.double()).float() for name in NAMES}
        folder.mkdir(parents=True, exist_ok=True)
        safetensors_file.write(folder / self.files[0], {"x": x} | tensors)
