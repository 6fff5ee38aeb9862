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


def run(processes: int, tensor: int, folder: str) -> tuple[list[float], str]:
    """Returns the losses, and what the model wrote."""
    command = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
    command += ["--standalone", "--nproc-per-node", str(processes), PROGRAM, TEXT]
    command += ["--tensor", str(tensor), "--steps", "8", "--new-tokens", "24"]
    command += ["--save", f"{folder}/{processes}_{tensor}.safetensors"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, timeout=150
    )
    out = done.stdout.decode("latin-1")
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stderr.decode()}")
    losses = [float(x) for x in re.findall(r"loss ([0-9.]+)", out)]
    return losses, out[out.index("wrote ") :]


def main() -> None:
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
