"""The package after `pip install -e`: modules of the sources, and the library.

    python editable.py SOURCE
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import torch

import torch_attention


def main(source: pathlib.Path) -> None:
    module = pathlib.Path(torch_attention.__file__).resolve()
    assert module.is_relative_to(source.resolve()), module
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    torch.testing.assert_close(
        torch_attention.attention(q, k, v, causal=True),
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    )
    prefix = pathlib.Path(torch_attention.cmake_prefix_path)
    assert list(prefix.glob("lib*/cmake/TorchAttention/*Config.cmake")), prefix
    program = pathlib.Path(sys.executable).parent / "torch-attention"
    version = subprocess.check_output([program, "--version"], text=True)
    assert torch_attention.__version__ in version, version


main(pathlib.Path(sys.argv[1]))
