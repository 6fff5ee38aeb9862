"""Python -> C++ -> train -> Python: both sides end with the same weights.

    python round_trip.py PROGRAM SCRIPTS

PROGRAM is round_trip.cpp, SCRIPTS the folder of the project's Python modules.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch

program, scripts = sys.argv[1:]
sys.path.insert(0, scripts)

from torch_attention_reference import safetensors_file  # noqa: E402
from torch_attention_reference.classes import MultiHeadAttention  # noqa: E402


def train(attention, x, target):
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(attention(x), target).backward()
        optimizer.step()


def read(path):
    if path.suffix == ".safetensors":
        return safetensors_file.read(path)[0]
    return torch.load(path, weights_only=True)


def make():
    return MultiHeadAttention(6, 8, 7, 0.0, 2, qkv_bias=True)


def check_close(name, actual, expected):
    difference = (actual - expected).abs().max().item()
    if difference > 1e-6:
        sys.exit(f"{name} differs by {difference}")


def round_trip(folder, extension):
    torch.manual_seed(123)
    attention = make()
    x = torch.rand(2, 5, 6)
    target = torch.rand(2, 5, 8)
    weights = folder / "weights.pt"
    torch.save(attention.state_dict(), weights)
    torch.save({"x": x, "target": target}, folder / "data.pt")
    trained = folder / ("trained" + extension)
    result = folder / ("result" + extension)
    subprocess.run(
        [program, weights, folder / "data.pt", trained, result], check=True
    )

    before = {k: v.clone() for k, v in attention.state_dict().items()}
    train(attention, x, target)
    state = read(trained)
    if list(state) != list(attention.state_dict()):
        # Safetensors files order their keys by themselves.
        if sorted(state) != sorted(attention.state_dict()):
            sys.exit(f"other keys: {list(state)}")
    again = make()
    again.load_state_dict(state)
    for key, value in attention.state_dict().items():
        check_close(key, again.state_dict()[key], value)
    if torch.equal(again.W_query.weight, before["W_query.weight"]):
        sys.exit("nothing was trained")
    check_close("output", again(x), read(result)["output"])
    print(f"{extension}: Python and C++ agree")


with tempfile.TemporaryDirectory() as temporary:
    for ending in (".pt", ".safetensors"):
        round_trip(pathlib.Path(temporary), ending)
