"""Python -> C++ -> train -> Python: both sides end with the same weights.

Tensors of every dtype, view and name that C++ writes are the same in Python.

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


DTYPES = {
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float": "float32",
    "Double": "float64",
    "Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e5m2fnuz": "float8_e5m2fnuz",
    "Float8_e4m3fnuz": "float8_e4m3fnuz",
}


def expected_tensors(extension):
    """Returns the tensors that write_tensors of round_trip.cpp writes."""
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    z = torch.complex(x, x + 12)
    tensors = {k: x.to(getattr(torch, v)) for k, v in DTYPES.items()}
    if extension == ".pt":
        tensors["ComplexHalf"] = z.to(torch.complex32)
        tensors["ComplexDouble"] = z.to(torch.complex128)
    tensors["z"] = z
    tensors["conjugate"] = z.conj()
    tensors["negative"] = -z
    tensors["imaginary"] = -z.imag
    tensors["transposed"] = x.T
    tensors["part"] = x[:, 1:3]
    tensors["expanded"] = x[:1].expand(2, 4)
    tensors["tied"] = x
    tensors["tied again"] = x
    tensors["scalar"] = x[1, 2]
    tensors["empty"] = x[3:]
    tensors['a.\0"b"\\\nü'] = x
    tensors[""] = x
    return tensors


def bits(tensor):
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    # Elements of no dimension have no bytes to be viewed.
    return tensor.reshape(-1).view(torch.uint8)


def check_tensors(folder, extension):
    path = folder / ("tensors" + extension)
    subprocess.run([program, path], check=True)
    expected = expected_tensors(extension)
    found = read(path)
    if sorted(found) != sorted(expected):
        sys.exit(f"other names: {sorted(found)}")
    if extension == ".pt":
        if list(found) != list(expected):
            sys.exit("names in another order")
        if found["tied"].data_ptr() != found["tied again"].data_ptr():
            sys.exit("tied tensors are no longer tied")
        # Tensors can read the records at their place in the file.
        mapped = torch.load(path, weights_only=True, mmap=True)
        if any(t.data_ptr() % 64 for t in mapped.values() if t.numel()):
            sys.exit("a tensor is not aligned")
    for name, tensor in expected.items():
        same = found[name]
        if same.dtype != tensor.dtype or same.shape != tensor.shape:
            sys.exit(f"{name} is {same.dtype} of {same.shape}")
        if not torch.equal(bits(same), bits(tensor)):
            sys.exit(f"{name} is {same}")
    print(f"{extension}: Python reads all {len(found)} tensors")


with tempfile.TemporaryDirectory() as temporary:
    for ending in (".pt", ".safetensors"):
        round_trip(pathlib.Path(temporary), ending)
        check_tensors(pathlib.Path(temporary), ending)
