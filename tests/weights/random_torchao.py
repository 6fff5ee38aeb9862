"""Random weights of torchao in safetensors files, read by torchao and by ours.

    python random_torchao.py PROGRAM [COUNT [SEED]]

PROGRAM is read_all.cpp. Values have to have the dtype and the bits of torchao's
`dequantize()`. A third of the files is damaged: a weight has to be refused, or
read as torchao reads it. Without the package nothing is compared.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
import tempfile
from typing import Any, Callable

import torch
from reader import Reader, difference
from torch import Tensor

try:
    import torchao.prototype.safetensors.safetensors_support as support
    from safetensors.torch import save_file
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.prototype.mx_formats.utils import to_blocked
    from torchao.quantization import (
        Float8Tensor,
        Int8Tensor,
        IntxUnpackedToInt8Tensor,
        PerRow,
        PerTensor,
    )
    from torchao.quantization.quantize_.common import KernelPreference
    from torchao.quantization.quantize_.workflows import (
        QuantizeTensorToFloat8Kwargs,
        QuantizeTensorToInt8Kwargs,
    )
except ImportError:
    support = None

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


class Grammar:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.torch = torch.Generator().manual_seed(draw.randrange(1 << 30))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.torch)

    def int8(self, *shape: int) -> Tensor:
        values = torch.randint(-128, 128, shape, generator=self.torch)
        return values.to(torch.int8)

    def matrix(self) -> list[int]:
        """Returns a shape that torchao quantizes itself."""
        return [self.draw.choice([2, 5, 12, 40]) for _ in range(2)]

    def blocks(self) -> tuple[list[int], list[int], list[int]]:
        """Returns a shape, the size of its blocks and their number."""
        shape = [self.draw.choice([1, 2, 3, 5, 12, 40]) for _ in range(2)]
        if self.draw.random() < 0.2:
            shape.insert(0, self.draw.randrange(1, 4))
        elif self.draw.random() < 0.1:
            shape = shape[:1]
        kind = self.draw.choice(["rows", "groups", "tensor", "blocks"])
        block = [1] * len(shape)
        block[-1] = shape[-1]
        if kind == "tensor":
            block = list(shape)
        elif kind != "rows":
            block[-1] = self.divisor(shape[-1])
            if kind == "blocks" and len(shape) > 1:
                block[-2] = self.divisor(shape[-2])
        return shape, block, [n // b for n, b in zip(shape, block)]

    def divisor(self, number: int) -> int:
        return self.draw.choice([n for n in range(1, number + 1) if number % n == 0])

    def of_int8(self) -> Tensor:
        shape, block, count = self.blocks()
        dtype = self.draw.choice(FLOATS)
        if self.draw.random() < 0.4:
            return Int8Tensor.from_hp(
                self.normal(*self.matrix()).to(dtype),
                self.draw.choice([PerRow(), PerTensor()]),
                act_quant_kwargs=self.draw.choice(
                    [None, QuantizeTensorToInt8Kwargs(PerRow())]
                ),
            )
        optional: dict[str, Any] = {}
        if self.draw.random() < 0.7:
            optional["zero_point"] = self.int8(*count)
        if self.draw.random() < 0.2:
            optional["act_quant_scale"] = self.normal(1, 1)
        scale = self.normal(*count).to(self.draw.choice([torch.float32, dtype]))
        return Int8Tensor(self.int8(*shape), scale, block, dtype, **optional)

    def of_intx(self) -> Tensor:
        shape, block, count = self.blocks()
        dtype = self.draw.choice(FLOATS)
        zero = self.int8(*count)
        if self.draw.random() < 0.4:
            zero = (self.normal(*count) * 9).to(self.draw.choice(FLOATS))
        bits = self.draw.randrange(1, 9)
        half = 1 << (bits - 1)
        return IntxUnpackedToInt8Tensor(
            self.int8(*shape).clamp(-half, half - 1),
            self.normal(*count).to(self.draw.choice(FLOATS)),
            zero,
            getattr(torch, f"int{bits}"),
            block,
            dtype,
            None,
        )

    def of_float8(self) -> Tensor:
        shape, block, count = self.blocks()
        kind = self.draw.choice([torch.float8_e4m3fn, torch.float8_e5m2])
        dtype = self.draw.choice(FLOATS)
        act = self.draw.choice([None, QuantizeTensorToFloat8Kwargs()])
        if self.draw.random() < 0.4:
            return Float8Tensor.from_hp(
                self.normal(*self.matrix()).to(dtype),
                kind,
                self.draw.choice([PerRow(), PerTensor()]),
                kernel_preference=KernelPreference.TORCH,
                act_quant_kwargs=act,
            )
        data = (self.normal(*shape) * 20).to(kind)
        scale = self.normal(*count).to(self.draw.choice(FLOATS))
        return Float8Tensor(
            data, scale, block_size=block, act_quant_kwargs=act, dtype=dtype
        )

    def of_nvfp4(self) -> Tensor:
        shape = [self.draw.choice([1, 3, 130]), 16 * self.draw.randrange(1, 10)]
        if self.draw.random() < 0.2:
            shape.insert(0, self.draw.randrange(1, 4))
        dtype = self.draw.choice(FLOATS)
        data = torch.randint(
            0, 256, (*shape[:-1], shape[-1] // 2), generator=self.torch
        ).to(torch.uint8)
        scale = (self.normal(*shape[:-1], shape[-1] // 16) * 9).to(torch.float8_e4m3fn)
        is_swizzled = len(shape) == 2 and self.draw.random() < 0.5
        if is_swizzled:
            scale = swizzled(scale)
        whole = self.normal(1)[0] if self.draw.random() < 0.6 else None
        return NVFP4Tensor(
            data, scale, 16, dtype, whole, is_swizzled_scales=is_swizzled
        )

    def of_mx(self) -> Tensor:
        size = self.draw.choice([16, 32])
        shape = [self.draw.choice([2, 3, 130]), size * self.draw.randrange(2, 10)]
        scale = torch.randint(
            97, 150, (shape[0], shape[1] // size), generator=self.torch
        )
        scale = scale.to(torch.uint8).view(torch.float8_e8m0fnu)
        element = self.draw.choice(
            [torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2]
        )
        if element == torch.float4_e2m1fn_x2:
            data = self.int8(shape[0], shape[1] // 2).view(torch.uint8)
        else:
            data = (self.normal(*shape) * 9).to(element)
        is_swizzled = self.draw.random() < 0.5
        if is_swizzled:
            scale = swizzled(scale)
        dtype = self.draw.choice([torch.float32, torch.bfloat16])
        return MXTensor(
            data, scale, element, size, dtype, KernelPreference.AUTO, None, is_swizzled
        )

    def weight(self) -> Tensor:
        kinds: list[Callable[[], Tensor]] = [
            self.of_int8,
            self.of_intx,
            self.of_float8,
            self.of_nvfp4,
            self.of_mx,
        ]
        if self.draw.random() < 0.2:
            return self.normal(3, 4).to(self.draw.choice(FLOATS))
        return self.draw.choice(kinds)()

    def state(self) -> dict[str, Tensor]:
        state = {}
        for i in range(self.draw.randrange(1, 4)):
            for name in ("q_proj.weight", "experts.gate_up_proj", "w_a.weight_b"):
                if self.draw.random() < 0.6:
                    state[f"layers.{i}.{name}"] = self.weight()
            state[f"layers.{i}.q_proj.bias"] = self.normal(5)
        return state

    def change(self, data: dict[str, Tensor], metadata: dict[str, str]) -> None:
        """Makes parts and descriptions not fit together."""
        name = self.draw.choice(sorted(set(metadata) - {"tensor_names"}))
        start, parameter = name.rsplit(".", 1)
        parts = [key for key in data if key.startswith(f"{start}._{parameter}_")]
        key = self.draw.choice(parts or sorted(data))
        described = json.loads(metadata[name])
        kind = self.draw.randrange(7)
        if kind == 0:
            del data[key]
        elif kind == 1 and data[key].dim() > 0 and data[key].shape[0] > 1:
            data[key] = data[key][:-1].clone()
        elif kind == 2:
            data[key] = data[key].float().to(self.draw.choice([torch.int16, *FLOATS]))
        elif kind == 3:
            del metadata[name]
        elif kind == 4 and "_data" in described:
            fields = described["_data"]
            field = self.draw.choice(sorted(fields))
            fields[field] = self.draw.choice([None, 3, [1, 2], "x", True])
            metadata[name] = json.dumps(described)
        elif kind == 5:
            described["_type"] = self.draw.choice(
                ["Int8Tensor", "Float8Tensor", "Int4Tensor", "Tensor", "NVFP4Tensor"]
            )
            metadata[name] = json.dumps(described)
        elif "_tensor_data_names" in described:
            described["_tensor_data_names"].pop()
            metadata[name] = json.dumps(described)


def swizzled(scale: Tensor) -> Tensor:
    rows, columns = scale.shape
    tiles = -(-rows // 128), -(-columns // 4)
    blocked = to_blocked(scale.view(torch.uint8)).view(scale.dtype)
    return blocked.view(tiles[0] * 32, tiles[1] * 16)


def as_torchao(data: dict[str, Tensor], metadata: dict[str, str], name: str) -> Any:
    """Returns how torchao reads a tensor of these files; None if it does not."""
    try:
        found, _ = support.unflatten_tensor_state_dict(
            data, {name: metadata[name], "tensor_names": json.dumps([name])}
        )
        tensor = found[name]
        return tensor if type(tensor) is Tensor else tensor.dequantize()
    except Exception:
        return None


def write(
    draw: random.Random,
    folder: pathlib.Path,
    data: dict[str, Tensor],
    metadata: dict[str, str],
) -> pathlib.Path:
    """Writes one file, or several with an index."""
    config = {"model_type": "llama", "quantization_config": {"quant_method": "torchao"}}
    if draw.random() < 0.3:
        del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    count = draw.choice([1, 1, 2, 3])
    files: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for key in data:
        draw.choice(files)[key] = data[key].contiguous()
    where = {}
    for i, part in enumerate(files):
        save_file(part, folder / f"{i}.safetensors", {"format": "pt", **metadata})
        where.update({key: f"{i}.safetensors" for key in part})
    if count == 1:
        return folder / "0.safetensors"
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    return index


def check(draw: random.Random, reader: Reader, folder: pathlib.Path) -> tuple[str, int]:
    """Returns a problem or "", and how many weights were read."""
    grammar = Grammar(draw)
    state = grammar.state()
    data, metadata = support.flatten_tensor_state_dict(state)
    changed = draw.random() < 0.35
    if changed:
        grammar.change(data, metadata)
    found, read = reader.read(write(draw, folder, data, metadata))
    if "error" in found:
        return found["error"], 0
    count = 0
    for name, tensor in state.items():
        if name in found["unreadable"]:
            if not changed:
                return f"{name} {found['unreadable'][name]}", count
            continue
        expected = tensor if type(tensor) is Tensor else tensor.dequantize()
        if changed:
            by_torchao = as_torchao(data, metadata, name)
            if by_torchao is not None:
                expected = by_torchao
            elif name not in read:
                continue
        if name not in read:
            return f"{name} is missing", count
        problem = difference(read[name], expected)
        if problem:
            return f"{name} ({type(tensor).__name__}) {problem}", count
        count += type(tensor) is not Tensor
    return "", count


def main() -> None:
    if support is None:
        print("without the packages torchao and safetensors")
        return
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    wrong = read = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        reader = Reader(sys.argv[1], folder)
        for seed in range(first, first + count):
            problem, its_read = check(random.Random(seed), reader, folder)
            read += its_read
            if problem:
                wrong += 1
                print(f"file {seed}: {problem[:500]}")
    print(f"{count} files: {read} weights read and equal, {wrong} files wrong")
    if wrong or read < count:
        sys.exit(1)


if __name__ == "__main__":
    main()
