"""Runs the program train_together of examples/distributed.

    python train_together.py TRAIN_TOGETHER TEXT

Losses and text of 2 processes (heads shared), 2 (sequences shared) and 4 (both)
are those of one, started by torchrun itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

PROGRAM, TEXT = sys.argv[1:3]


def start(
    processes: int, *arguments: object
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
    command += ["--standalone", "--nproc-per-node", str(processes)]
    command += [PROGRAM, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, timeout=150
    )


def run(processes: int, tensor: int, folder: str) -> tuple[list[float], str]:
    """Returns the losses, and what the model wrote."""
    options = ["--tensor", tensor, "--steps", 8, "--new-tokens", 24]
    options += ["--save", f"{folder}/{processes}_{tensor}.safetensors"]
    done = start(processes, TEXT, *options)
    out = done.stdout.decode("latin-1")
    if done.returncode != 0:
        sys.exit(f"{done.args} ended with {done.returncode}:\n{done.stderr.decode()}")
    losses = [float(x) for x in re.findall(r"loss ([0-9.]+)", out)]
    return losses, out[out.index("wrote ") :]


def test_refusal() -> None:
    """More tokens than the model takes are refused before training."""
    done = start(1, TEXT, "--new-tokens", 62)
    assert done.returncode != 0, done
    assert b"Expected --new-tokens from 1 to 61, but got 62" in done.stderr, done
    assert b"loss" not in done.stdout, done
    status = subprocess.run([PROGRAM, "--tensors"], capture_output=True).returncode
    assert status == 2, status


def main() -> None:
    test_refusal()
    with tempfile.TemporaryDirectory() as folder:
        losses, text = run(1, 1, folder)
        assert len(losses) == 8 and losses[-1] < losses[0] - 0.1, losses
        for processes, tensor in ((2, 2), (2, 1), (4, 2)):
            others, their_text = run(processes, tensor, folder)
            worst = max(abs(a - b) for a, b in zip(losses, others, strict=True))
            print(f"{processes} processes, heads by {tensor}: {worst:.1e}")
            assert worst < 1e-5, (losses, others)
            assert their_text == text, (text, their_text)
            sizes = {
                os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder)
            }
            assert len(sizes) == 1, sizes


main()
