"""Distributed checkpoints of random tensors, split over processes at random.

    python distributed_checkpoints.py PROGRAM

PROGRAM is read_all.cpp; its tensors have to be those that were saved. Then
faults: each has to be an error, or to leave the tensors as they were.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import random
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.multiprocessing as multiprocessing
from reader import Reader, difference
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

warnings.simplefilter("ignore")

PROCESSES = 3
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)


def draw_tensors(seed: int) -> dict[str, torch.Tensor]:
    """Returns tensors by name; the same in every process."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    tensors = {}
    for index in range(draw.randint(3, 12)):
        shape = [draw.randint(1, 9) for _ in range(draw.randint(1, 4))]
        values = torch.randn(shape) * 9
        tensors[f"layers.{index}.weight"] = values.to(draw.choice(DTYPES))
    return tensors


def save(rank: int, folder: str, seed: int) -> None:
    """Saves the tensors of `seed` from one of the processes."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=PROCESSES,
    )
    mesh = init_device_mesh("cpu", (PROCESSES,))
    draw = random.Random(seed + 1)
    state = {}
    for name, tensor in draw_tensors(seed).items():
        kind = draw.choice(["plain", "replicated", "split", "split"])
        placement = (
            Shard(draw.randrange(tensor.dim())) if kind == "split" else Replicate()
        )
        state[name] = (
            tensor if kind == "plain" else distribute_tensor(tensor, mesh, [placement])
        )
    whole = {"model": state, "step": 3} if draw.random() < 0.5 else state
    checkpoint.save(whole, checkpoint_id=f"{folder}/saved")
    dist.destroy_process_group()


def wrong_tensors(reader: Reader, folder: pathlib.Path, seed: int) -> list[str]:
    found, tensors = reader.read(folder)
    if "error" in found:
        return [found["error"]]
    start = f"{found['root']}." if found["root"] else ""
    expected = {start + name: t for name, t in draw_tensors(seed).items()}
    if tensors.keys() != expected.keys():
        return [f"has {sorted(tensors)}, expected {sorted(expected)}"]
    wrong = []
    for name, tensor in expected.items():
        text = difference(tensors[name], tensor)
        if text:
            wrong.append(f"{name} {text}")
    return wrong


def faults(reader: Reader, folder: pathlib.Path, draw: random.Random) -> int:
    """Returns how many faults of the metadata went unnoticed."""
    path = folder / ".metadata"
    good = path.read_bytes()
    unnoticed = 0

    def expect_error(why: str) -> None:
        nonlocal unnoticed
        found, _ = reader.read(folder)
        if "error" not in found:
            unnoticed += 1
            print(f"no error, but {why}")

    metadata = pickle.loads(good)
    split = [k for k, t in metadata.state_dict_metadata.items() if hasattr(t, "chunks")]
    for change in ("offset", "size", "missing", "shape"):
        changed = pickle.loads(good)
        entry = changed.state_dict_metadata[draw.choice(split)]
        chunk = entry.chunks[-1]
        if change == "offset":
            chunk.offsets = torch.Size([n + 1 for n in chunk.offsets])
        elif change == "size":
            chunk.sizes = torch.Size([n + 1 for n in chunk.sizes])
        elif change == "missing":
            entry.chunks.pop()
        else:
            entry.size = torch.Size([n + 1 for n in entry.size])
        path.write_bytes(pickle.dumps(changed))
        expect_error(f"the {change} of a shard changed")
    for info in metadata.storage_data.values():
        info.offset += 1
    path.write_bytes(pickle.dumps(metadata))
    expect_error("all places moved")
    # Cut short or with other bytes: an error or the tensors, never a crash.
    for _ in range(60):
        data = bytearray(good)
        if draw.random() < 0.3:
            data = data[: draw.randrange(len(data))]
        else:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(data) or b"\x80")
        reader.read(folder)
    path.write_bytes(good)
    shard = draw.choice(sorted(folder.glob("*.distcp")))
    shard.rename(folder / "elsewhere")
    expect_error(f"{shard.name} is missing")
    (folder / "elsewhere").rename(shard)
    return unnoticed


def main() -> None:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    seeds = range(4)
    wrong = 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            multiprocessing.spawn(save, (temporary, seed), nprocs=PROCESSES)
            reader = Reader(sys.argv[1], folder)
            for text in wrong_tensors(reader, folder / "saved", seed):
                wrong += 1
                print(f"seed {seed}: {text}")
            wrong += faults(reader, folder / "saved", random.Random(seed))
    print(f"{len(seeds)} checkpoints, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
