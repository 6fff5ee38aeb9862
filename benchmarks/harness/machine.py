"""The machine on which figures are measured."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import torch


def cpu_info(name: str) -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def describe_machine() -> dict[str, Any]:
    # The first on x86, the second on ARM64.
    flags = set(cpu_info("flags").split() + cpu_info("Features").split())
    names = "avx2 fma avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16 asimd sve bf16"
    return {
        "cpu": cpu_info("model name"),
        "instruction_sets": [n for n in names.split() if n in flags],
        "libtorch_instruction_set": torch.backends.cpu.get_cpu_capability(),
        "libtorch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
