"""The folders of the wheel: one for each minor version of LibTorch.

Needs no torch, so that the program starts without importing it.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

NAME = "libtorch-"


def prefixes() -> dict[tuple[int, int], Path]:
    """Returns the folders by the major and minor version of their LibTorch."""
    found = {}
    folders = list(Path(__file__).parent.glob(f"{NAME}*"))
    if not folders:
        # This file is one of the sources, after `pip install -e`.
        installed = importlib.metadata.distribution("torch-attention")
        folders = list(Path(installed.locate_file("torch_attention")).glob(f"{NAME}*"))
    for folder in folders:
        major, minor = folder.name[len(NAME) :].split(".")
        found[int(major), int(minor)] = folder
    return dict(sorted(found.items()))


def prefix_for(torch_version: str) -> Path:
    """Returns the folder for a version of torch, such as "2.11.0+cpu".

    Raises ImportError if there is none: LibTorch's C++ interface changes from one
    minor version to the next.
    """
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    found = prefixes()
    folder = found.get((int(match[1]), int(match[2]))) if match else None
    if folder is None:
        versions = ", ".join(f"{major}.{minor}" for major, minor in found) or "none"
        raise ImportError(
            f"torch_attention: expected torch of a version that this package was "
            f"built for ({versions}), but got torch {torch_version}. Install such a "
            f"torch, or build this package again with this one: pip install "
            f"--force-reinstall --no-deps SOURCES"
        )
    return folder
