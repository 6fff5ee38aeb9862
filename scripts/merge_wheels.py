#!/usr/bin/env python3
"""Makes one wheel of several that were built for other minor versions of torch.

    merge_wheels.py OUT WHEEL...

Each WHEEL has a folder torch_attention/libtorch-MAJOR.MINOR; all else has to be
equal. The wheel in the folder OUT has all of these folders, and asks for a torch that
it has a folder for. Needs the package wheel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

NAME = "libtorch-"


def unpack(wheel: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "wheel", "unpack", "--dest", folder, wheel]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (root,) = folder.iterdir()
    return root


def shared_files(root: Path) -> Iterator[Path]:
    """Yields the files that belong to no version of torch."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        is_own = any(part.startswith(NAME) for part in name.parts)
        if path.is_file() and not is_own and path.name != "RECORD":
            yield name


def check_equal(first: Path, other: Path) -> None:
    names, others = list(shared_files(first)), list(shared_files(other))
    if names != others:
        sys.exit(f"expected the same files in all wheels, but got {names} and {others}")
    for name in names:
        if (first / name).read_bytes() != (other / name).read_bytes():
            sys.exit(f"expected equal files in all wheels, but {name} differs")


def requirement(root: Path) -> str:
    """Returns the versions of torch that there is a folder for: "torch!=2.10.*,<2.12,>=2.9"."""
    folders = (root / "torch_attention").glob(f"{NAME}*")
    found = sorted(tuple(map(int, x.name[len(NAME) :].split("."))) for x in folders)
    if len({major for major, _ in found}) != 1:
        sys.exit(f"expected one major version of torch, but got {found}")
    major, minors = found[0][0], [minor for _, minor in found]
    bounds = [f">={major}.{minors[0]}", f"<{major}.{minors[-1] + 1}"]
    missing = sorted(set(range(minors[0], minors[-1])) - set(minors))
    return "torch" + ",".join(bounds + [f"!={major}.{minor}.*" for minor in missing])


def merge(out: Path, wheels: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        roots = [unpack(wheel, Path(temporary, str(i))) for i, wheel in enumerate(wheels)]
        for root in roots[1:]:
            check_equal(roots[0], root)
            for folder in (root / "torch_attention").glob(f"{NAME}*"):
                shutil.move(folder, roots[0] / "torch_attention")
        (metadata,) = roots[0].glob("*.dist-info/METADATA")
        text, count = re.subn(
            r"(?m)^Requires-Dist: torch\b.*$",
            f"Requires-Dist: {requirement(roots[0])}",
            metadata.read_text(),
        )
        if count != 1:
            sys.exit(f"expected one requirement of torch in {metadata}, but got {count}")
        metadata.write_text(text)
        out.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "wheel", "pack", "--dest-dir", out, roots[0]]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    merge(Path(sys.argv[1]), [Path(x) for x in sys.argv[2:]])
