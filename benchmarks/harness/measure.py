"""Times functions interleaved, as src/tools/measure.h does in C++."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Effort:
    seconds: float
    least_rounds: int
    most_rounds: int
    sample_seconds: float = 5e-3


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[round(q * (len(values) - 1))]


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": quantile(values, 0.5),
        "p10": quantile(values, 0.1),
        "p90": quantile(values, 0.9),
    }


def ratio(theirs: list[float], ours: list[float]) -> dict[str, float]:
    """Returns the medians' ratio, with p10 and p90 of the rounds' ratios."""
    result = spread([t / o for t, o in zip(theirs, ours, strict=True)])
    result["median"] = quantile(theirs, 0.5) / quantile(ours, 0.5)
    return result


def timer(run: Callable[[], Any]) -> Callable[[int], float]:
    """Returns what takes the time of a number of calls."""

    def take(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return time.perf_counter() - start

    return take


def sample(timer: Callable[[int], float], seconds: float) -> tuple[int, float]:
    """Returns a number of calls that take about `seconds`, and their time."""
    calls = 1
    elapsed = timer(calls)
    while elapsed < seconds / 2 and calls < 2**20:
        growth = seconds / max(elapsed, 1e-9)
        calls = int(calls * min(max(growth, 2), 32))
        elapsed = timer(calls)
    return calls, elapsed


def interleave(
    timers: list[Callable[[int], float]], effort: Effort
) -> list[list[float]]:
    """Returns the seconds of one call, by timer and round.

    Each round begins with another timer.
    """
    start = time.perf_counter()
    samples = [sample(timer, effort.sample_seconds) for timer in timers]
    seconds = [[elapsed / calls] for calls, elapsed in samples]
    for turn in range(1, effort.most_rounds):
        is_late = time.perf_counter() - start > effort.seconds
        if turn >= effort.least_rounds and is_late:
            break
        for j in range(len(timers)):
            i = (j + turn) % len(timers)
            calls = samples[i][0]
            seconds[i].append(timers[i](calls) / calls)
    return seconds
