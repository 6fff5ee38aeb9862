"""Masks that a rule of positions says as well.

transformers makes the mask of a forward pass once for all layers. Whether it is only
causal, or only a window or chunks, is looked at there and noted on the tensor: then
kernels get the rule instead, for which devices have faster ones, and no layer reads the
mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

Rule = dict[str, Any]

NOTE = "_torch_attention_rule"


def _has_numbers(mask: Tensor) -> bool:
    """Returns whether the numbers of the mask may be read here: not where a compiler or a
    graph records, which would keep the answer for other masks."""
    return (
        type(mask) is Tensor
        and not mask.is_meta
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._functorch.is_functorch_wrapped_tensor(mask)
        # Modes record as well, such as that of make_fx.
        and torch._C._len_torch_dispatch_stack() == 0
        and not (mask.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _candidates(
    T: int, S: int, size: int | None, device: torch.device
) -> Iterator[tuple[Rule, Tensor]]:
    """Yields rules, and where they show keys to queries, (T, S). The last query sees the
    last key; `size` is that of a window or chunk."""
    if T == 1:
        yield {}, torch.ones(1, S, dtype=torch.bool, device=device)
    keys = torch.arange(S, device=device)
    queries = torch.arange(S - T, S, device=device)[:, None]
    causal = keys <= queries
    yield {"causal": True}, causal
    if not size:
        return
    yield {"causal": True, "window": size}, causal & (keys > queries - size)
    yield {"causal": True, "chunk": size}, causal & (keys >= queries - queries % size)
    near = (keys >= queries - size) & (keys <= queries + size)
    yield {"window": size + 1, "window_after": size}, near


def one_slice(mask: Tensor) -> Tensor:
    """Returns one slice where all slices of a dimension are one in memory."""
    for dim in range(mask.dim()):
        if mask.stride(dim) == 0 and mask.shape[dim] > 1:
            mask = mask.narrow(dim, 0, 1)
    return mask


def _find_rule(mask: Tensor, size: int | None) -> Rule | None:
    T, S = mask.shape[-2:]
    if T > S or mask.numel() == 0:
        return None
    visible = one_slice(mask)
    for rule, shown in _candidates(T, S, size, mask.device):
        if torch.equal(visible, shown.expand_as(visible)):
            return rule
    return None


def noted(mask: Tensor, size: int | None) -> Tensor:
    """Returns the mask (B, 1, T, S), True where a query sees a key, with a note of its
    rule if there is one. `size` is that of the window or chunk that it may have."""
    if mask.dtype != torch.bool or not _has_numbers(mask):
        return mask
    # Tensors of inference mode do not tell whether they were changed.
    with torch.inference_mode(False):
        if mask.is_inference():
            mask = mask.clone()
        rule = _find_rule(mask, size)
        if rule is not None:
            setattr(mask, NOTE, (mask._version, rule))
    return mask


def rule_of(mask: Tensor, query: Tensor, key: Tensor) -> Rule | None:
    """Returns the arguments of our operator that stand for the mask: what was noted, if
    the mask was not changed since, and is for such queries and keys. None: the mask."""
    if not _has_numbers(mask):
        return None
    version, rule = getattr(mask, NOTE, (None, None))
    fits = mask.shape[-2:] == (query.shape[-2], key.shape[-2])
    return rule if version is not None and version == mask._version and fits else None
