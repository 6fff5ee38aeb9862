"""`torch-attention verify` accepts the files of scripts/export_weights.py.

    python export_weights.py PROGRAM SCRIPTS

PROGRAM is torch-attention, SCRIPTS the folder of the project's Python modules.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

program, scripts = (os.path.abspath(path) for path in sys.argv[1:])

MODEL = """
import torch
from torch_attention_reference.classes import CausalAttention, MultiHeadAttention

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.att = MultiHeadAttention(6, 8, 7, 0.0, 2, qkv_bias=True)
        self.norm = torch.nn.LayerNorm(8)

def build():
    return torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([Block(), Block()])})

def single():
    return CausalAttention(6, 4, 7, 0.0)
"""


def run(*arguments, folder, status=0):
    environment = dict(os.environ, PYTHONPATH=scripts)
    result = subprocess.run(
        [str(a) for a in arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    output = result.stdout + result.stderr
    if result.returncode != status:
        sys.exit(f"{arguments} ended with {result.returncode}:\n{output}")
    return output


def check(folder, factory, name, *options):
    export = [sys.executable, pathlib.Path(scripts) / "export_weights.py"]
    run(*export, factory, name, "--input-shape", "2,5,6", *options, folder=folder)
    table = run(program, "verify", name, folder=folder)
    if "0 failed" not in table:
        sys.exit(f"{name}:\n{table}")
    run(program, "inspect", name, "--check", folder=folder)
    print(f"{name}: exported and verified")


with tempfile.TemporaryDirectory() as temporary:
    temporary = pathlib.Path(temporary)
    (temporary / "model.py").write_text(MODEL)
    submodule = ("--submodule", "blocks.1.att")
    check(temporary, "model:build", "layer.safetensors", *submodule)
    check(temporary, "model:build", "layer.pth", *submodule)
    check(
        temporary,
        "model:single",
        "single.pt",
        "--format",
        "torchscript",
        "--dtype",
        "float64",
    )
    # Other weights than those that were recorded are found out.
    path = temporary / "layer.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    output = run(program, "verify", path.name, folder=temporary, status=1)
    if "checksum (CRC-32)" not in output:
        sys.exit(f"a damaged file:\n{output}")
