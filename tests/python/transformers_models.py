"""attn_implementation="torch_attention" is eager's in every small model of the golden
files, which are of all model types that the library knows.

    python transformers_models.py

Each model is run twice, with eager and with ours. A model is refused, if
transformers computes its attention in no other way, or keeps its own attention, if
its code asks for no implementation.
"""

from __future__ import annotations

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
        distance = (x - y).abs() / y.abs().max().clamp_min(1e-6)
        worst = max(worst, distance.nan_to_num(float("inf")).max().item())
    return worst


def run_by(model: Any, part: Any, inputs: dict[str, Tensor], implementation: str) -> list[Tensor]:
    model.set_attn_implementation(implementation)
    torch.manual_seed(5)
    with torch.no_grad():
        return list(tensors_of(part(**inputs)))


def check(small: Any) -> str:
    """Returns what happened: computed, own attention, or refused."""
    global calls
    model = small.make(small.make_config())
    part = model.get_submodule(small.run_part)
    torch.manual_seed(3)
    inputs = draw_inputs(small.inputs)
    eager = run_by(model, part, inputs, "eager")
    calls = 0
    try:
        ours = run_by(model, part, inputs, "torch_attention")
    except ValueError as error:
        if "torch_attention: expected" not in str(error):
            raise
        return "refused"
    distance = difference(ours, eager)
    if not distance <= ALLOWED:
        raise AssertionError(f"differs from eager by {distance:.1e}")
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
