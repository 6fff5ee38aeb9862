"""How far the results of candidates are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor


def results_of(run: Callable[[], Tensor | Iterable[Tensor]]) -> list[Tensor]:
    """Calls `run`, which returns a tensor or several."""
    found = run()
    return [found] if isinstance(found, Tensor) else list(found)


def difference(theirs: list[Tensor], ours: list[Tensor]) -> float:
    """Returns the largest difference, relative to the tensor's largest element."""
    if len(theirs) != len(ours):
        raise ValueError("candidates give different numbers of gradients")
    largest = 0.0
    for a, b in zip(theirs, ours, strict=True):
        distance = (a.double() - b.double()).abs().max().item()
        relative = distance / b.abs().max().item()
        is_nan = relative != relative
        largest = max(largest, float("inf") if is_nan else relative)
    return largest
