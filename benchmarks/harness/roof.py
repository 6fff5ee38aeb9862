"""The best that this machine can do, by LibTorch's own operations."""

from __future__ import annotations

from typing import Any

import torch

from harness.measure import Effort, interleave, spread, timer


class Roof:
    """LibTorch's sgemm and reading of memory, on this number of threads."""

    def __init__(self, rows: int = 2048, floats: int = 1 << 26) -> None:
        self.rows = rows
        self.a = torch.rand(rows, rows)
        self.b = torch.rand(rows, rows)
        self.c = torch.empty(rows, rows)
        self.x = torch.ones(floats)

    @property
    def flops(self) -> float:
        return 2.0 * self.rows**3

    def multiply(self) -> None:
        torch.mm(self.a, self.b, out=self.c)

    def read(self) -> None:
        self.x.sum()

    def describe(self) -> dict[str, Any]:
        effort = Effort(1, 5, 9)
        y = torch.ones_like(self.x)
        z = torch.empty_like(self.x)

        def rates(run: Any, amount: float) -> dict[str, float]:
            seconds = interleave([timer(run)], effort)[0]
            return spread([amount / s for s in seconds])

        return {
            "product": f"torch.mm, {self.rows} rows",
            "sgemm_flops_per_second": rates(self.multiply, self.flops),
            "read_bytes_per_second": rates(self.read, self.x.nbytes),
            "triad_bytes_per_second": rates(
                lambda: torch.add(self.x, y, alpha=2, out=z), 3 * self.x.nbytes
            ),
        }
