"""`flex_attention` with the calling convention of FlexAttention, by our kernels."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from ._masks import BlockMask, MaskMod

# Its import takes long, and who has a mask of it has imported it.
THEIRS = "torch.nn.attention.flex_attention"
# A mask of one block of this size stands for any number of tokens.
_ANY_LENGTH = 1 << 30


def _dense(num_blocks: Tensor, indices: Tensor) -> Tensor:
    """Returns the blocks of each row as bool (B, H, rows, columns), from their number
    (B, H, rows) and their columns, of which the others are undefined."""
    columns = indices.shape[-1]
    is_one = torch.arange(columns) < num_blocks.cpu()[..., None]
    # The others go to one column more.
    index = torch.where(is_one, indices.cpu().long(), columns)
    dense = torch.zeros(*index.shape[:-1], columns + 1, dtype=torch.bool)
    dense = dense.scatter(-1, index, torch.ones_like(is_one))[..., :columns]
    return dense[(None,) * (4 - dense.dim())]


def from_flex_attention(
    mask: Any, num_queries: int | None = None, num_keys: int | None = None
) -> BlockMask:
    """Does what `BlockMask.from_flex_attention` describes, for the sizes of the mask
    unless others are given."""
    T, S = mask.shape[-2:]
    device = mask.kv_num_blocks.device

    def decides(*indices: Tensor) -> Tensor:
        return mask.mask_mod(*(x.to(device) for x in indices)).cpu()

    partial = _dense(mask.kv_num_blocks, mask.kv_indices)
    mod = MaskMod.blocks(partial, *mask.BLOCK_SIZE) & MaskMod.function(decides)
    if mask.full_kv_num_blocks is not None:
        full = _dense(mask.full_kv_num_blocks, mask.full_kv_indices)
        mod = MaskMod.blocks(full, *mask.BLOCK_SIZE) | mod
    return BlockMask(
        mod,
        T if num_queries is None else num_queries,
        S if num_keys is None else num_keys,
        batch_size=partial.shape[0],
        num_heads=partial.shape[1],
        query_offsets=0,
    )


def _packed(block_mask: Any, query: Tensor, key: Tensor) -> Tensor | None:
    if block_mask is None or isinstance(block_mask, Tensor):
        return block_mask
    if isinstance(block_mask, BlockMask):
        return block_mask.packed
    theirs = sys.modules.get(THEIRS)
    if theirs is None or not isinstance(block_mask, theirs.BlockMask):
        raise TypeError(
            f"flex_attention: expected a BlockMask of torch_attention or of "
            f"torch.nn.attention.flex_attention, but got {type(block_mask).__name__}"
        )
    if min(block_mask.BLOCK_SIZE) >= _ANY_LENGTH:
        return from_flex_attention(block_mask, query.shape[-2], key.shape[-2]).packed
    return from_flex_attention(block_mask).packed


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Tensor:
    """Returns what torch.nn.attention.flex_attention.flex_attention does, with the same
    arguments, by our kernels, and with gradients on the CPU.

    query is (B, H, T, D), key (B, G, S, D) and value (B, G, S, Dv). A `BlockMask` of
    FlexAttention is converted in each call: `BlockMask.from_flex_attention(mask)` does
    it once for all layers. `kernel_options`, which choose kernels of CUDA and not what
    they compute, are left aside.

    Raises ValueError for a `score_mod`, and for requests of what is not the output.
    """
    if score_mod is not None:
        raise ValueError(
            "flex_attention: expected no score_mod, which our kernels do not call. Use "
            "torch_attention.attention with block_mask and, in the place of the function, "
            "bias (a tensor that is added to the scores), softcap, alibi_slopes or sinks; "
            "what a function sets to -inf belongs into the block_mask."
        )
    if return_lse or return_aux is not None:
        raise ValueError(
            "flex_attention: expected no return_lse and return_aux: only the output is returned"
        )
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise ValueError(
            f"flex_attention: expected query, key and value of four dimensions, but got "
            f"{query.dim()}, {key.dim()} and {value.dim()}"
        )
    return torch.ops.torch_attention.attention(
        query,
        key,
        value,
        block_mask=_packed(block_mask, query, key),
        scale=scale,
        enable_gqa=enable_gqa,
    )
