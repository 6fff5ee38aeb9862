"""Times work of a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def event_timer(run: Callable[[], Any]) -> Callable[[int], float]:
    """Returns what takes the device's time of a number of calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def take(calls: int) -> float:
        start.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    return take
