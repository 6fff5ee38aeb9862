"""attn_implementation="torch_attention" is eager's in every small model of the golden
files, which are of all model types that the library knows.

    python transformers_models.py

Each model is run twice, with eager, or sdpa where that is the right way of its class,
and with ours. A model is refused, if transformers computes its attention in no other
way, or keeps its own attention, if its code asks for no implementation: then it gets
the mask of eager.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor

import torch_attention  # noqa: F401: registers itself
from torch_attention import _transformers

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "golden"), str(TESTS.parent / "scripts")]

from generate.pretrained.inputs import draw_inputs  # noqa: E402
from generate.pretrained.models import MODELS  # noqa: E402

ALLOWED = 1e-5
# After many layers, with small weights.
ALLOWED_OF_CHOOSING = 1e-4
# Their eager has other masks than their sdpa.
LIKE_SDPA = {"grounding_dino", "lw_detr", "mm_grounding_dino"}
# These keep the places with the largest scores, of which random weights make some
# nearly equal. The output that comes before is compared.
CHOOSES = LIKE_SDPA | {"rt_detr", "rt_detr_v2"}
# Fewer would test little.
LEAST_COMPUTED = 230

calls = 0


def counted(*arguments: Any, **options: Any) -> Any:
    global calls
    calls += 1
    return _transformers.attention_forward(*arguments, **options)


def tensors_of(outputs: Any) -> Iterator[Tensor]:
    """Yields the floating-point tensors of what a model returns, caches aside."""
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point():
            yield outputs
    elif isinstance(outputs, dict):
        for name, value in outputs.items():
            if name != "past_key_values":
                yield from tensors_of(value)
    elif isinstance(outputs, (tuple, list)):
        for value in outputs:
            yield from tensors_of(value)


def difference(ours: list[Tensor], eager: list[Tensor]) -> float:
    """Returns the largest difference relative to each tensor's largest element."""
    if [x.shape for x in ours] != [x.shape for x in eager]:
        return float("inf")
    worst = 0.0
    for x, y in zip(ours, eager):
        # Detectors give -inf to what is no text.
        largest = y.abs().nan_to_num(posinf=0.0).max().clamp_min(1e-6)
        distance = torch.where(x == y, 0.0, (x - y).abs()) / largest
        worst = max(worst, distance.nan_to_num(float("inf")).max().item())
    return worst


@functools.cache
def is_made_with_ours(model_class: type, config_of: Any) -> bool:
    """Returns whether a model is made by the name, as from_pretrained does; some look it
    up in a table of their own."""
    try:
        model_class._from_config(config_of(), attn_implementation="torch_attention")
    except (AttributeError, KeyError):
        return False
    return True


def set_implementation(model: Any, small: Any, implementation: str) -> None:
    """Sets it as from_pretrained does, also where attention has code of its own."""
    model.set_attn_implementation(implementation)
    if not is_made_with_ours(type(model), small.make_config):
        return
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, transformers.PreTrainedConfig):
            config._attn_implementation = implementation


def run_by(
    model: Any,
    small: Any,
    part: Any,
    inputs: dict[str, Tensor],
    implementation: str,
    chooses: bool,
) -> list[Tensor]:
    set_implementation(model, small, implementation)
    torch.manual_seed(5)
    with torch.no_grad():
        outputs = part(**inputs)
        if chooses:
            outputs = {
                name: value
                for name, value in outputs.items()
                if name.startswith("encoder_last_hidden_state")
            }
        return list(tensors_of(outputs))


def check(small: Any) -> str:
    """Returns what happened: computed, own attention, or refused."""
    global calls
    model = small.make(small.make_config())
    part = model.get_submodule(small.run_part)
    torch.manual_seed(3)
    inputs = draw_inputs(small.inputs)
    chooses = small.name in CHOOSES
    # The eager way of some classes adds bool masks to the scores.
    implementation = "sdpa" if small.name in LIKE_SDPA else small.implementation
    expected = run_by(model, small, part, inputs, implementation, chooses)
    calls = 0
    try:
        ours = run_by(model, small, part, inputs, "torch_attention", chooses)
    except ValueError as error:
        if "torch_attention: expected" not in str(error):
            raise
        return "refused"
    distance = difference(ours, expected)
    if not distance <= (ALLOWED_OF_CHOOSING if chooses else ALLOWED):
        raise AssertionError(f"differs from {implementation} by {distance:.1e}")
    return "computed" if calls else "own attention"


def main() -> int:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.AttentionInterface.register("torch_attention", counted)
    results: Counter[str] = Counter()
    for small in MODELS:
        try:
            result = check(small)
        except Exception as error:  # noqa: BLE001: all of them are shown
            print(f"FAILED {small.name}: {error!r}")
            result = "FAILED"
        if result in ("refused", "own attention"):
            print(f"{result}: {small.name}")
        results[result] += 1
    print(dict(results))
    if results["computed"] < LEAST_COMPUTED:
        print(f"expected {LEAST_COMPUTED} models that are computed")
        return 1
    return 1 if results["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
