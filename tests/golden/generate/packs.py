"""Packs of golden files: tests/golden/SET/PACK.zip.

The names in a pack are paths below the folder that the tests read, in which
tests/golden.cmake unpacks all of them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1]


def read_pack(path: Path) -> dict[str, bytes]:
    """Returns the files of a pack, if it is there."""
    if not path.is_file():
        return {}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_pack(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes a pack, the same one for the same files.

    Files are stored: weights hardly compress, and git stores a new version of a
    pack as its difference from the old one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # has a fixed date
            entry.create_system = 3  # of the permissions: Unix
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])


def unpack_pack(path: Path, folder: Path) -> list[str]:
    """Unpacks a pack and returns the names of its files."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        return archive.namelist()
