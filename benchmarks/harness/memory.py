"""The memory of this process."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any


def status_bytes(name: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    return -1


def peak_resident(run: Callable[[], Any]) -> int:
    """Returns the bytes of the run's peak of memory beyond that before it."""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return -1
    before = status_bytes("VmRSS")
    run()
    return max(status_bytes("VmHWM") - before, 0)
