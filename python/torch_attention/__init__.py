"""TorchAttention's operators for PyTorch and its attention for transformers.

    import torch_attention

    y = torch_attention.attention(q, k, v, causal=True, window=256)
    model = AutoModel.from_pretrained(name, attn_implementation="torch_attention")
    torch_attention.show(outputs.attentions, tokens)  # a page, in notebooks

The import loads the library that was built for the installed minor version of
torch, and fails with ImportError if there is none. The operators are those of
`torch.ops.torch_attention` (docs/python.md).

`cmake_prefix_path` is the folder for CMAKE_PREFIX_PATH with which C++ projects find
the same library: find_package(TorchAttention). `library` is the path of
libtorch_attention.so.
"""

from __future__ import annotations

import importlib.metadata

import torch

from . import _masks, _registration
from ._flex import flex_attention
from ._folders import prefix_for
from ._masks import BlockMask, MaskMod
from ._show import AttentionPage, show

__version__ = importlib.metadata.version("torch-attention")

_folder = prefix_for(torch.__version__)
cmake_prefix_path = str(_folder)
library = str(_folder / "lib" / "libtorch_attention.so")
try:
    torch.ops.load_library(library)
except OSError as error:
    raise ImportError(
        f"torch_attention: expected torch {torch.__version__} to load {library}, but "
        f"it cannot: {error}. A torch that was built by other means than its wheel may "
        f"have another C++ ABI; build torch-attention again with it."
    ) from error

attention = torch.ops.torch_attention.attention
attention_with_weights = torch.ops.torch_attention.attention_with_weights
decode = torch.ops.torch_attention.decode
replace_sdpa = torch.ops.torch_attention.replace_sdpa
restore_sdpa = torch.ops.torch_attention.restore_sdpa
rotary = torch.ops.torch_attention.rotary
scaled_dot_product_attention = torch.ops.torch_attention.scaled_dot_product_attention

_registration.register()
_mask_functions = _masks.register()

__all__ = [
    "AttentionPage",
    "BlockMask",
    "MaskMod",
    "attention",
    "attention_with_weights",
    "cmake_prefix_path",
    "decode",
    "flex_attention",
    "library",
    "replace_sdpa",
    "restore_sdpa",
    "rotary",
    "scaled_dot_product_attention",
    "show",
]
