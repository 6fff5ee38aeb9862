"""Makes us known to PyTorch and to transformers, which is not imported for it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
import torch.nn.attention

NAME = "torch_attention"
# The module of transformers with the registry of attention, and ours that registers.
REGISTRY = "transformers.modeling_utils"
OURS = f"{__package__}._transformers"


class _Replaced:
    """LibTorch's attention by our kernels, until it is removed."""

    def __init__(self) -> None:
        torch.ops.torch_attention.replace_sdpa()

    def remove(self) -> None:
        torch.ops.torch_attention.restore_sdpa()


def _register_transformers() -> None:
    try:
        importlib.import_module(OURS)
    except ImportError as error:
        warnings.warn(
            f'torch_attention: attn_implementation="torch_attention" is not registered: '
            f"this version of transformers has no registry of attention and masks ({error}).",
            stacklevel=2,
        )


class _WhenImported:
    """Registers our attention as soon as transformers is imported, which takes
    seconds and is not done for a program that may not use it."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _register_transformers()

        spec.loader.exec_module = execute_and_register
        return spec


def register() -> None:
    # From PyTorch 2.10 on.
    register_impl = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if register_impl is not None:
        register_impl(NAME, register_fn=_Replaced)
    if REGISTRY in sys.modules:
        _register_transformers()
    else:
        sys.meta_path.insert(0, _WhenImported())
