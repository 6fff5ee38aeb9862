"""Our attention for models of transformers: attn_implementation="torch_attention".

It computes what "eager" does. Masks are bool, as those of "sdpa", and our kernels skip
what is hidden in them tile by tile: what comes later, windows, chunks, padding, packed
sequences, the unwritten part of a static cache. The import registers both for all
models of the process.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import AttentionInterface, PreTrainedModel

from . import _mask_rules

# Tensors that models hand to every implementation, and that say nothing about attention
# that the mask does not say.
REDUNDANT = {
    "cache_position",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "num_items_in_batch",
    "position_ids",
    "seq_idx",
    "shift_labels",
}


@functools.cache
def _find_kernels(attention: type) -> bool:
    models = [
        model
        for model in vars(sys.modules[attention.__module__]).values()
        if isinstance(model, type)
        and issubclass(model, PreTrainedModel)
        and model is not PreTrainedModel
    ]
    # A module outside of transformers' files is its author's choice.
    return not models or any(
        getattr(model, "_supports_sdpa", False) or getattr(model, "_supports_flash_attn", False)
        for model in models
    )


# torch.compile takes the answer, and does not look into the function.
@torch.compiler.assume_constant_result
def _has_kernels(attention: type) -> bool:
    """Returns whether transformers computes a model's attention by other implementations
    too. Where it has its own code alone, that code may do what no implementation is
    told of."""
    return _find_kernels(attention)


def _check_call(module: nn.Module, sinks: Tensor | None, others: Mapping[str, Any]) -> None:
    """Raises ValueError where a result may depend on what we do not know."""
    name = type(module).__name__
    if not _has_kernels(type(module)):
        raise ValueError(
            f"torch_attention: expected a model whose attention transformers also "
            f"computes by another implementation (sdpa or flash attention), but {name} "
            f'has none. Use attn_implementation="eager".'
        )
    for argument, value in others.items():
        if isinstance(value, Tensor) and argument not in REDUNDANT:
            raise ValueError(
                f"torch_attention: expected no argument {argument!r} of {name}, which our "
                f'attention does not compute. Use attn_implementation="eager".'
            )
    if sinks is None and getattr(module, "sinks", None) is not None:
        raise ValueError(
            f"torch_attention: expected the sinks of {name} as the argument s_aux, but got "
            f'none. Use attn_implementation="eager".'
        )


def _is_own_attention(node: ast.stmt, source: str) -> bool:
    """Returns whether a class computes weights from masked scores itself: it would add a
    bool mask to them."""
    if not isinstance(node, ast.ClassDef):
        return False
    if not any(word in node.name for word in ("Attention", "Compressor", "Indexer")):
        return False
    text = ast.get_source_segment(source, node) or ""
    return "softmax" in text and "mask" in text and "ALL_ATTENTION_FUNCTIONS" not in text


def _has_own_attention(module: ModuleType) -> bool:
    try:
        source = inspect.getsource(module)
        return any(_is_own_attention(node, source) for node in ast.parse(source).body)
    except (OSError, SyntaxError, TypeError):
        return True


@functools.cache
def _find_own_attention(config: type) -> bool:
    names = [base.__module__.replace("configuration_", "modeling_") for base in config.__mro__]
    modules = [sys.modules[name] for name in names if "modeling_" in name and name in sys.modules]
    # A configuration of another file tells nothing about its model.
    return not modules or any(map(_has_own_attention, modules))


@torch.compiler.assume_constant_result
def _reads_float_masks(config: type) -> bool:
    """Returns whether the file of a configuration's model may have attention that asks
    for no implementation, as those of Bloom and the text of GIT. transformers gives it
    our mask all the same."""
    return _find_own_attention(config)


def attention_mask(*args: Any, **options: Any) -> Tensor | None:
    """Returns the mask (B, 1, T, S) of a model, True where a query sees a key, or None
    if all see all. Models with attention of their own get the mask of "eager", which is
    added to the scores.

    None never stands for a causal mask, as in "sdpa": eager knows no such meaning, and
    modules disagree on it.
    """
    config = options.get("config")
    if config is None or _reads_float_masks(type(config)):
        return eager_mask(*args, **options)
    mask = sdpa_mask(*args, **{**options, "allow_is_causal_skip": False})
    return mask if mask is None else _mask_rules.noted(mask, options.get("local_size"))


def _rules_of_mask(
    mask: Any, position_bias: Tensor | None, query: Tensor, key: Tensor, *, noted: bool
) -> dict[str, Any]:
    """Returns our operator's arguments for a mask of transformers: bool, True where a
    query sees a key, or a float mask that is added to the scores. `noted`: the rule that
    is noted on it may stand for it."""
    if mask is None:
        return {} if position_bias is None else {"bias": position_bias}
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"torch_attention: expected a bool or float tensor as attention_mask, but got {found}"
        )
    if mask.dtype == torch.bool:
        rules = _mask_rules.rule_of(mask, query, key) if noted else None
        if rules is None:
            rules = {"mask": ~_mask_rules.one_slice(mask)}
        return rules if position_bias is None else rules | {"bias": position_bias}
    return {"bias": mask if position_bias is None else mask + position_bias}


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Computes attention as transformers' AttentionInterface describes it.

    query is (B, H, T, D), key (B, G, S, D) and value (B, G, S, Dv), where G divides H;
    attention_mask (B, 1 or H, T, S), bool or float, or None. Other arguments, such as
    is_causal and sliding_window, say what the mask says.

    Returns the output (B, T, H, Dv), and the weights (B, H, T, S) with
    `output_attentions`, which need memory of that size, else None.

    Raises ValueError for what it cannot compute: models whose attention transformers
    computes by no other implementation than eager, tensors that it does not know, and
    masks of other kinds.
    """
    _check_call(module, s_aux, others)
    attend = torch.ops.torch_attention.attention
    if output_attentions:
        attend = torch.ops.torch_attention.attention_with_weights
    dropped = dropout if module.training else 0.0
    # Checkpointing may compute again with a mask that lost its note: by the mask both
    # times, so that both drop the same.
    rules = _rules_of_mask(attention_mask, position_bias, query, key, noted=dropped == 0)
    result = attend(
        query,
        key,
        value,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        enable_gqa=query.shape[1] != key.shape[1],
        dropout_p=dropped,
        **rules,
    )
    output, weights = result if output_attentions else (result, None)
    return output.transpose(1, 2).contiguous(), weights


AttentionInterface.register("torch_attention", attention_forward)
AttentionMaskInterface.register("torch_attention", attention_mask)
