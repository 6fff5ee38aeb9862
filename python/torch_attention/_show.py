"""`show`: the page of `torch-attention heatmap`, of weights that transformers computed.

The page itself is made with the program (src/tools/heatmap/page); here is what is
written into it.
"""

from __future__ import annotations

import ctypes
import html
import json
import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ._folders import prefix_for

PLACE_OF_DATA = '{"data": "of the map"}'
MOST_WEIGHTS = 20_000_000
STEPS = 4095  # from weight 0 to weight 1
LETTERS = torch.tensor(
    list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"), dtype=torch.uint8
)
# Rounding lets the softmax exceed 1 by less.
LARGEST_WEIGHT = 1.0001


class AttentionPage:
    """A page of attention weights. Notebooks display it where it is the value of a cell."""

    def __init__(self, text: str, height: int) -> None:
        self._text = text
        self._height = height

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to one file, which needs no other and no network."""
        Path(path).write_text(self._text, encoding="utf-8")

    def _repr_html_(self) -> str:
        # The page can neither read nor change the notebook that displays it.
        return (
            f'<iframe srcdoc="{html.escape(self._text)}" sandbox="allow-scripts" '
            f'title="Attention" style="width: 100%; height: {self._height}px; border: 0">'
            f"</iframe>"
        )


@dataclass(frozen=True)
class _Stack:
    """The attention of all layers from some tokens to others, as the caller gave it."""

    name: str
    attentions: Any
    query_name: str
    queries: Any
    key_name: str
    keys: Any


def _printable(token: str) -> str:
    """Returns a token with its invisible characters, and those that change the direction
    of others, as `\\u202e`; in quotes, if nothing of it can be seen."""
    result, has_visible = "", False
    for character in token:
        code, category = ord(character), unicodedata.category(character)
        is_no_character = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
        if category in ("Cc", "Cf", "Cs", "Zl", "Zp") or is_no_character:
            result += f"\\u{code:04x}"
            has_visible = True
        else:
            result += character
            has_visible = has_visible or category != "Zs"
    return result if has_visible else f'"{result}"'


def _labels(name: str, tokens: Any) -> list[str]:
    if isinstance(tokens, (str, bytes, Tensor)) or not isinstance(tokens, Sequence):
        raise TypeError(
            f"show: expected a list of texts as {name}, such as "
            f"tokenizer.convert_ids_to_tokens(ids), but got {type(tokens).__name__}"
        )
    for token in tokens:
        if not isinstance(token, str):
            raise TypeError(
                f"show: expected texts in {name}, but got {type(token).__name__}: {token!r}"
            )
    return [_printable(token) for token in tokens]


def _check_type(where: str, weights: Any) -> None:
    if weights is None:
        raise ValueError(
            f"show: expected weights in {where}, but got None: load the model with "
            f'attn_implementation="eager" and call it with output_attentions=True'
        )
    if isinstance(weights, (tuple, list)):
        raise TypeError(
            f"show: expected one tensor as {where}, but got a {type(weights).__name__}: generate "
            f"returns one for each new token, so call the model on all tokens instead"
        )
    if not isinstance(weights, Tensor) or not weights.is_floating_point():
        got = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(f"show: expected a tensor of numbers as {where}, but got {got}")


def _check_values(where: str, weights: Tensor) -> None:
    if not torch.isfinite(weights).all():
        raise ValueError(f"show: expected finite weights in {where}, but got NaN or infinity")
    least, most = weights.min().item(), weights.max().item()
    if least < 0 or most > LARGEST_WEIGHT:
        raise ValueError(
            f"show: expected weights from 0 to 1 in {where}, but got {least:.6g} to {most:.6g}; "
            f"a model in training drops some and enlarges the others: call eval()"
        )


def _weights(where: str, weights: Any, stack: _Stack, T: int, S: int) -> Tensor:
    """Returns the weights of a layer as (H, T, S) of float32 on the CPU."""
    _check_type(where, weights)
    if weights.dim() == 4 and weights.size(0) != 1:
        raise ValueError(
            f"show: expected one sequence, but {where} has a batch of {weights.size(0)}: pass "
            f"those of one, as [layer[i : i + 1] for layer in {stack.name}], and all of its "
            f"tokens, with padding"
        )
    shape = tuple(weights.shape)
    weights = weights.detach()[0] if weights.dim() == 4 else weights.detach()
    if weights.dim() != 3 or weights.numel() == 0:
        raise ValueError(f"show: expected (1, H, T, S) or (H, T, S) as {where}, but got {shape}")
    for name, wanted, got in (
        (stack.query_name, T, weights.size(1)),
        (stack.key_name, S, weights.size(2)),
    ):
        if wanted != got:
            raise ValueError(
                f"show: expected as many {name} as {where} has, which is {got} of {shape}, "
                f"but got {wanted}"
            )
    weights = weights.to("cpu", torch.float32)
    _check_values(where, weights)
    return weights


def _letters(weights: Tensor, causal: bool) -> list[str]:
    """Returns a text for each head: two letters for each weight that is not hidden."""
    steps = (weights.clamp(0, 1) * STEPS).round().long()
    if causal:
        rows, columns = torch.tril_indices(*steps.shape[1:])
        steps = steps[:, rows, columns]
    steps = steps.flatten(1)
    letters = LETTERS[torch.stack((steps // 64, steps % 64), -1)].flatten(1).contiguous()
    return [ctypes.string_at(row.data_ptr(), row.numel()).decode("ascii") for row in letters]


def _chosen(name: str, numbers: Iterable[int] | None, count: int, stack: _Stack) -> list[int]:
    if numbers is None:
        return list(range(count))
    chosen = sorted(set(numbers))
    if not chosen or chosen[0] < 0 or chosen[-1] >= count:
        raise ValueError(
            f"show: expected {name} in [0, {count}), which {stack.name} has, but got {chosen}"
        )
    return chosen


def _data_of(
    stack: _Stack, layers: Iterable[int] | None, heads: Iterable[int] | None
) -> dict[str, Any]:
    """Returns what the page's data.js describes as an attention."""
    if not isinstance(stack.attentions, (tuple, list)):
        raise TypeError(
            f"show: expected a tuple of tensors as {stack.name}, one for each layer, but got "
            f"{type(stack.attentions).__name__}"
        )
    queries = _labels(stack.query_name, stack.queries)
    keys = _labels(stack.key_name, stack.keys)
    T, S = len(queries), len(keys)
    chosen_layers = _chosen("layers", layers, len(stack.attentions), stack)
    if not chosen_layers:
        raise ValueError(f"show: expected at least one layer in {stack.name}, but got none")
    chosen_heads, found = None, []
    for layer in chosen_layers:
        where = f"{stack.name}[{layer}]"
        weights = _weights(where, stack.attentions[layer], stack, T, S)
        if chosen_heads is None:
            count = weights.size(0)
            chosen_heads = _chosen("heads", heads, count, stack)
            _check_size(len(chosen_layers) * len(chosen_heads) * T * S)
        if weights.size(0) != count:
            raise ValueError(
                f"show: expected {count} heads in {where}, as in the layer before it, but got "
                f"{weights.size(0)}"
            )
        causal = 1 < T == S and not torch.triu(weights, 1).any()
        letters = _letters(weights[chosen_heads], causal)
        found.append({"layer": layer, "causal": causal, "weights": letters})
    name = stack.name.removesuffix("attentions").rstrip("_") or "attention"
    return {
        "name": name, "queries": queries, "keys": keys, "heads": chosen_heads, "layers": found,
    }


def _check_size(count: int) -> None:
    if count > MOST_WEIGHTS:
        raise ValueError(
            f"show: expected at most {MOST_WEIGHTS} weights, but got {count}: choose some by "
            f"layers= or heads="
        )


def _stacks(
    attentions: Any,
    tokens: Any,
    encoder_attentions: Any,
    decoder_attentions: Any,
    cross_attentions: Any,
    decoder_tokens: Any,
) -> list[_Stack]:
    source = ("tokens", tokens)
    target = ("decoder_tokens", decoder_tokens)
    all_stacks = (
        _Stack("attentions", attentions, *source, *source),
        _Stack("encoder_attentions", encoder_attentions, *source, *source),
        _Stack("decoder_attentions", decoder_attentions, *target, *target),
        _Stack("cross_attentions", cross_attentions, *target, *source),
    )
    stacks = [stack for stack in all_stacks if stack.attentions is not None]
    if not stacks:
        raise ValueError(
            "show: expected attentions, or encoder_attentions, decoder_attentions or "
            "cross_attentions, but got none; models return them with output_attentions=True"
        )
    return stacks


def show(
    attentions: Sequence[Tensor] | None = None,
    tokens: Sequence[str] | None = None,
    *,
    encoder_attentions: Sequence[Tensor] | None = None,
    decoder_attentions: Sequence[Tensor] | None = None,
    cross_attentions: Sequence[Tensor] | None = None,
    decoder_tokens: Sequence[str] | None = None,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    title: str = "",
    height: int = 800,
) -> AttentionPage:
    """Returns a page that shows what tokens attend to, for one sequence.

    Each of the attentions is a tuple of one tensor for each layer, (1, H, T, S) or
    (H, T, S), of weights after the softmax, as models of transformers return them with
    `output_attentions=True`:

    - `attentions`, of models that only encode or only decode, with `tokens`;
    - `encoder_attentions` with `tokens`, `decoder_attentions` with `decoder_tokens`, and
      `cross_attentions` from `decoder_tokens` to `tokens`: one, two or all three.

    `layers` and `heads` choose some of them, by their numbers from 0 on. `height` is that
    of the page in a notebook, in pixels. The page has at most 20 million weights, in steps
    of 1/4095 and two letters each; where no token attends to a later one, half of them.

    Raises TypeError or ValueError if the sizes do not fit, the batch has several
    sequences, or weights are missing, not finite, or not from 0 to 1.

        outputs = model(**inputs, output_attentions=True)
        page = torch_attention.show(outputs.attentions, inputs.tokens())
        page.save("attention.html")
        page  # displays it in a notebook
    """
    stacks = _stacks(
        attentions, tokens, encoder_attentions, decoder_attentions, cross_attentions,
        decoder_tokens,
    )
    data = {
        "title": _printable(title) if title else "",
        "attentions": [_data_of(stack, layers, heads) for stack in stacks],
    }
    _check_size(
        sum(
            len(each["layers"]) * len(each["heads"]) * len(each["queries"]) * len(each["keys"])
            for each in data["attentions"]
        )
    )
    text = json.dumps(data, separators=(",", ":"))
    for character in "<>&":
        # No `</script>` ends the script that the data is in.
        text = text.replace(character, f"\\u{ord(character):04x}")
    folder = prefix_for(torch.__version__) / "share/torch_attention"
    page = (folder / "attention_page.html").read_text(encoding="utf-8")
    if page.count(PLACE_OF_DATA) != 1:
        raise RuntimeError(f"show: expected one place for data in {folder}, which is damaged")
    return AttentionPage(page.replace(PLACE_OF_DATA, text), int(height))
