"""A set of golden files: written to packs, or compared with those there."""

from __future__ import annotations

import bisect
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch_attention_reference import ExportError, first_line

from .packs import read_pack, unpack_pack, write_pack

# File -> the reason why it cannot be made here.
LeftOut = dict[str, str]


class Unavailable(Exception):
    """Says that this Python lacks something."""


@dataclass(frozen=True)
class Made:
    """The committed files, unpacked, and those made again."""

    committed: Path
    fresh: Path
    pack_of: dict[str, str]  # by committed file
    left_out: LeftOut


@dataclass(frozen=True)
class GoldenSet:
    """How a set of files is made, and how two of its files are compared."""

    name: str
    folder: str  # below that of all unpacked files
    make: Callable[[Path], LeftOut]
    # (committed folder, folder made again, file) -> the difference, or nothing
    difference: Callable[[Path, Path, str], str]
    pattern: str = "*"
    # A pack has the files from its name to the next one's, by the alphabet;
    # about 300 kB at most, since a change is a new version of the whole pack.
    packs: tuple[str, ...] = ("all",)

    def pack_of(self, file: str) -> str:
        index = bisect.bisect_right(self.packs, file) - 1
        return self.packs[max(index, 0)]

    def unpack(self, root: Path, folder: Path) -> dict[str, str]:
        """Unpacks the committed files and returns the pack of each."""
        prefix = f"{self.folder}/" if self.folder else ""
        return {
            name.removeprefix(prefix): path.stem
            for path in sorted((root / self.name).glob("*.zip"))
            for name in unpack_pack(path, folder)
        }

    @contextmanager
    def made_again(self, root: Path) -> Iterator[Made]:
        with tempfile.TemporaryDirectory() as temporary:
            committed = Path(temporary, "committed")
            pack_of = self.unpack(root, committed)
            fresh = Path(temporary, "fresh")
            fresh.mkdir()
            left_out = self.make(fresh)
            yield Made(committed / self.folder, fresh, pack_of, left_out)

    def write(self, root: Path) -> LeftOut:
        """Writes the packs whose files differ, and says what they have."""
        with self.made_again(root) as made:
            wanted = self.files(made.fresh)
            for file in made.pack_of.keys() - wanted - made.left_out.keys():
                (made.committed / file).unlink()
            # A file that agrees stays: another processor's last bits would
            # change every pack.
            for file in wanted - made.left_out.keys():
                if file not in made.pack_of or self.compare(made, file):
                    path = made.committed / file
                    path.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(made.fresh / file, path)
            files = self.files(made.committed)
            written = self.write_packs(root, made.committed, files)
        print(f"{self.name}: {len(files)} files, wrote {written or 'nothing'}")
        say_left_out(made.left_out)
        return made.left_out

    def write_packs(self, root: Path, folder: Path, files: set[str]) -> str:
        """Returns the names of the packs that differed."""
        contents: dict[str, dict[str, bytes]] = defaultdict(dict)
        for file in files:
            name = f"{self.folder}/{file}" if self.folder else file
            contents[self.pack_of(file)][name] = (folder / file).read_bytes()
        for path in (root / self.name).glob("*.zip"):
            if path.stem not in contents:
                path.unlink()
        written = []
        for pack, content in sorted(contents.items()):
            path = root / self.name / f"{pack}.zip"
            if read_pack(path) != content:
                write_pack(path, content)
                written.append(path.name)
        return ", ".join(written)

    def check(self, root: Path) -> tuple[int, LeftOut]:
        """Returns the number of committed files that differ from new ones."""
        if not (root / self.name).is_dir():
            raise ExportError(f"{root / self.name}: no such folder")
        failures = 0
        with self.made_again(root) as made:
            wanted = self.files(made.fresh)
            files = (wanted | made.pack_of.keys()) - made.left_out.keys()
            for file in sorted(files):
                problem = self.problem(made, file, wanted)
                failures += bool(problem)
                print(f"FAIL {file}: {problem}" if problem else f"ok   {file}")
        say_left_out(made.left_out)
        agree = len(files) - failures
        print(f"{self.name}: {agree} of {len(files)} files agree")
        return failures, made.left_out

    def problem(self, made: Made, file: str, wanted: set[str]) -> str:
        if file not in wanted:
            return "is not one of the files"
        pack, right = made.pack_of.get(file), self.pack_of(file)
        if pack is None:
            return "is missing"
        if pack != right:
            return f"is in {pack}.zip, and belongs in {right}.zip"
        return self.compare(made, file)

    def compare(self, made: Made, file: str) -> str:
        try:
            return self.difference(made.committed, made.fresh, file)
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
