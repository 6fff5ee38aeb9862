"""A set of golden files: written to a folder, or compared with one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch_attention_reference import ExportError, first_line

# File -> the reason why it cannot be made here.
LeftOut = dict[str, str]


class Unavailable(Exception):
    """Says that this Python lacks something."""


@dataclass(frozen=True)
class GoldenSet:
    """How a set of files is made, and how two of its files are compared."""

    name: str
    folder: str  # below tests/golden
    make: Callable[[Path], LeftOut]
    # (committed folder, folder made again, file) -> the difference, or nothing
    difference: Callable[[Path, Path, str], str]
    pattern: str = "*"

    def write(self, root: Path) -> LeftOut:
        """Writes the files and says how many there are."""
        folder = root / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        left_out = self.make(folder)
        files = self.files(folder) - left_out.keys()
        size = sum((folder / file).stat().st_size for file in files)
        print(f"{self.name}: {len(files)} files, {size / 1024:.0f} KiB")
        say_left_out(left_out)
        return left_out

    def check(self, root: Path) -> tuple[int, LeftOut]:
        """Returns the number of committed files that differ from new ones."""
        committed = root / self.folder
        if not committed.is_dir():
            raise ExportError(f"{committed}: no such folder")
        failures = 0
        with tempfile.TemporaryDirectory() as temporary:
            fresh = Path(temporary)
            left_out = self.make(fresh)
            made = self.files(fresh)
            files = (made | self.files(committed)) - left_out.keys()
            for file in sorted(files):
                if file not in made:
                    problem = "is not one of the files"
                elif not (committed / file).is_file():
                    problem = "is missing"
                else:
                    problem = self.compare(committed, fresh, file)
                failures += bool(problem)
                print(f"FAIL {file}: {problem}" if problem else f"ok   {file}")
        say_left_out(left_out)
        agree = len(files) - failures
        print(f"{self.name}: {agree} of {len(files)} files agree")
        return failures, left_out

    def compare(self, committed: Path, fresh: Path, file: str) -> str:
        try:
            return self.difference(committed, fresh, file)
        except Exception as error:  # a broken file can raise nearly anything
            return f"cannot be read: {first_line(error)}"

    def files(self, folder: Path) -> set[str]:
        return {
            path.relative_to(folder).as_posix()
            for path in folder.glob(self.pattern)
            if path.is_file()
        }


def say_left_out(left_out: LeftOut) -> None:
    for file, why in left_out.items():
        print(f"LEFT OUT {file}: {why}")
