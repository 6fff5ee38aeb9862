"""Files of other programs: each is named, with the line that converts it.

    python foreign_files.py PROGRAM

PROGRAM is read_all.cpp. Formats whose packages are not there are written by
hand, as far as their kind is told from it.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator

import torch
import torch.distributed.checkpoint as distributed
from reader import Reader

warnings.simplefilter("ignore")


def zip_of(path: pathlib.Path, records: dict[str, bytes]) -> pathlib.Path:
    with zipfile.ZipFile(path, "w") as zipped:
        for name, data in records.items():
            zipped.writestr(name, data)
    return path


def bytes_of(path: pathlib.Path, data: bytes) -> pathlib.Path:
    path.write_bytes(data)
    return path


def files(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
    """Returns files, and texts that their errors have to contain."""
    hdf5 = b"\x89HDF\r\n\x1a\n" + bytes(64)
    sharded = folder / "sharded"
    distributed.save(
        torch.nn.Linear(3, 4).state_dict(), checkpoint_id=str(sharded)
    )
    give = "Give the path of its folder"
    metadata = (sharded / ".metadata").read_bytes()
    yield bytes_of(folder / "metadata.pkl", metadata), give
    for shard in sharded.glob("*.distcp"):
        yield shard, give
        yield bytes_of(folder / "renamed.pt", shard.read_bytes()), give
    # ir_version 8, producer_name "pytorch", a graph
    onnx = b"\x08\x08\x12\x07pytorch\x3a\x02\x0a\x00"
    yield bytes_of(folder / "a.onnx", onnx), "onnx.load(path)"
    yield (
        bytes_of(folder / "a.msgpack", b"\x81\xa6params\x81\xa5Dense\x80"),
        "flax.serialization.msgpack_restore",
    )
    yield bytes_of(folder / "a.ptl", b"\x1c\0\0\0PTMF" + bytes(64)), "mobile"
    yield (
        zip_of(
            folder / "a.keras",
            {"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": hdf5},
        ),
        "keras.models.load_model",
    )
    yield (
        zip_of(
            folder / "a.pt2",
            {"a/data/aotinductor/model/b.wrapper.so": b"\x7fELF"},
        ),
        "AOTInductor",
    )
    yield zip_of(folder / "npz.pt", {"w.npy": b"\x93NUMPY"}), "numpy.load"
    yield bytes_of(folder / "a.h5", hdf5), "visititems"
    yield bytes_of(folder / "block.h5", bytes(512) + hdf5), "visititems"
    for protocol in range(2, 6):
        path = folder / f"old{protocol}.pt"
        torch.save(
            {"a": torch.ones(1)},
            path,
            pickle_protocol=protocol,
            _use_new_zipfile_serialization=False,
        )
        yield path, "torch.load(path, weights_only=True)"


def main() -> None:
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        reader = Reader(sys.argv[1], folder)
        for path, message in files(folder):
            found, _ = reader.read(path)
            if message not in found.get("error", ""):
                wrong += 1
                print(f"{path.name}: expected {message!r}, but got {found}")
    print(f"{wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
