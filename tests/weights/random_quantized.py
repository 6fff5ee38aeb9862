"""Random quantized weights, read by the libraries that quantize and by ours.

    python random_quantized.py PROGRAM [COUNT [SEED]]

PROGRAM is read_all.cpp. FP8, GPTQ and AWQ are compared with a few lines of
PyTorch, compressed-tensors and bitsandbytes with these packages, bit for bit.
Some files are changed so that their tensors no longer fit together: they have to
be refused, or read as before. Without the packages their part is left out.
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
    import bitsandbytes.functional as bnb
except ImportError:
    bnb = None
try:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
except ImportError:
    BaseCompressor = None
try:
    from safetensors.torch import save_file
except ImportError:
    save_file = None


class Case:
    """The tensors of a module, its configuration and its weight."""

    def __init__(
        self, tensors: dict[str, Tensor], config: dict[str, Any] | None, weight: Tensor
    ) -> None:
        self.tensors = tensors
        self.config = config
        self.weight = weight


def packed(values: Tensor, bits: int) -> Tensor:
    """Packs the rows of integers into words of 32 bits, by the text of bits."""
    rows = []
    for row in values.tolist():
        text = "".join(format(value, f"0{bits}b")[::-1] for value in row)
        text += "0" * (-len(text) % 32)
        words = [int(text[i : i + 32][::-1], 2) for i in range(0, len(text), 32)]
        rows.append([word - (1 << 32 if word >> 31 else 0) for word in words])
    return torch.tensor(rows, dtype=torch.int32)


def zeros_of_v1(zeros: Tensor, bits: int) -> Tensor:
    """Packs zeros less one, as GPTQModel does: a zero of 0 borrows from the field
    after it, because whole words are changed, but for 3 bits."""
    if bits == 3:
        return packed((zeros - 1) % 8, bits)
    ones = packed(torch.ones_like(zeros), bits)
    return packed(zeros, bits) - ones


class Grammar:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.torch = torch.Generator().manual_seed(draw.randrange(1 << 30))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.torch)

    def integers(self, most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=self.torch, dtype=torch.int32)

    def scales(self, *shape: int) -> Tensor:
        dtype = self.draw.choice([torch.float32, torch.bfloat16, torch.float16])
        return self.normal(*shape).to(dtype)

    def fp8(self) -> Case:
        rows, columns = (self.draw.choice([1, 3, 40, 128, 130, 300]) for _ in "ab")
        e5m2 = self.draw.random() < 0.2
        dtype = torch.float8_e5m2 if e5m2 else torch.float8_e4m3fn
        weight = self.normal(rows, columns).mul(8).to(dtype)
        kind = self.draw.choice(["blocks", "rows", "one"])
        block = self.draw.choice([(128, 128), (64, 32), (1, 16)])
        config: dict[str, Any] | None = {"quant_method": "fp8"}
        name = "weight_scale_inv"
        if kind == "blocks":
            assert config is not None
            config["weight_block_size"] = list(block)
            scale = self.scales(-(-rows // block[0]), -(-columns // block[1]))
            if block == (128, 128) and self.draw.random() < 0.5:
                # Only whole blocks, or one, tell their size.
                sure = scale.numel() == 1 or rows % 128 == columns % 128 == 0
                config = self.draw.choice([None] * sure + [{"quant_method": "fp8"}])
        elif kind == "rows":
            config = self.draw.choice(
                [{"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, None]
            )
            name, block = "weight_scale", (1, columns)
            scale = self.scales(rows, 1)
        else:
            config = self.draw.choice(
                [{"quant_method": "modelopt", "quant_algo": "FP8"}, None]
            )
            name, block = "weight_scale", (rows, columns)
            scale = self.scales(*self.draw.choice([[], [1]]))
        whole = scale.float().reshape(-1, 1) if scale.dim() < 2 else scale.float()
        whole = whole.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        tensors = {"weight": weight, name: scale}
        if self.draw.random() < 0.3:
            tensors["input_scale"] = torch.tensor(2.0)
        return Case(tensors, config, weight.float() * whole[:rows, :columns])

    def gptq(self) -> Case:
        bits = self.draw.choice([2, 3, 4, 8])
        rows = 32 * self.draw.randrange(1, 6)
        columns = 32 * self.draw.randrange(1, 6)
        size = self.draw.choice([16, 32, columns])
        groups = -(-columns // size)
        weight = self.integers(1 << bits, rows, columns)
        zeros = self.integers(1 << bits, groups, rows)
        scales = self.scales(groups, rows)
        index = torch.arange(columns, dtype=torch.int32) // size
        act_order = self.draw.random() < 0.5
        if act_order:
            index = index[torch.randperm(columns, generator=self.torch)]
        v2 = self.draw.random() < 0.5
        tensors = {
            "qweight": packed(weight, bits).T.contiguous(),
            "qzeros": packed(zeros, bits) if v2 else zeros_of_v1(zeros, bits),
            "scales": scales,
            "g_idx": index,
        }
        if not act_order and columns % size == 0 and self.draw.random() < 0.3:
            del tensors["g_idx"]
        config = {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": -1 if size == columns else size,
            "desc_act": act_order,
        }
        if v2 or self.draw.random() < 0.5:
            config["checkpoint_format"] = "gptq_v2" if v2 else "gptq"
        at = index.long()
        expected = (weight - zeros[at].T).float() * scales[at].T.float()
        return Case(tensors, config, expected)

    def awq(self) -> Case:
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        rows = 8 * self.draw.randrange(1, 20)
        size = self.draw.choice([8, 16, 64])
        columns = size * self.draw.randrange(1, 6)
        groups = columns // size
        weight = self.integers(16, rows, columns)
        zeros = self.integers(16, groups, rows)
        scales = self.scales(groups, rows)

        def pack(values: Tensor) -> Tensor:
            return packed(values.unflatten(1, (-1, 8))[..., order].flatten(1), 4)

        tensors = {
            "qweight": pack(weight.T),
            "qzeros": pack(zeros),
            "scales": scales,
        }
        config = {
            "quant_method": "awq",
            "bits": 4,
            "group_size": size,
            "version": "gemm",
            "zero_point": True,
        }
        at = torch.arange(columns) // size
        expected = (weight - zeros[at].T).float() * scales[at].T.float()
        return Case(tensors, config, expected)

    def compressed(self) -> Case:
        """All formats of compressed-tensors, by the package."""
        name = self.draw.choice(
            [
                "pack-quantized",
                "int-quantized",
                "naive-quantized",
                "float-quantized",
                "nvfp4-pack-quantized",
                "mxfp4-pack-quantized",
            ]
        )
        rows = self.draw.choice([1, 5, 32, 100])
        columns = 32 * self.draw.randrange(1, 8)
        size = self.draw.choice([8, 16, 32])
        args: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True}
        args["strategy"] = self.draw.choice(["tensor", "channel", "group"])
        if name == "pack-quantized":
            args["num_bits"] = self.draw.randrange(1, 9)
            if args["strategy"] != "tensor":
                args["symmetric"] = self.draw.random() < 0.5
            # The package fails at a single word of zero points.
            rows = rows if args["symmetric"] else max(rows, 32)
        elif name == "float-quantized":
            args["type"] = "float"
            args["strategy"] = self.draw.choice(["tensor", "channel", "block"])
        elif name == "nvfp4-pack-quantized":
            size = 16
            args.update(num_bits=4, type="float", strategy="tensor_group")
        elif name == "mxfp4-pack-quantized":
            size = 32
            args.update(num_bits=4, type="float", strategy="group")
        else:
            args["symmetric"] = self.draw.random() < 0.5
        grid = (rows, 1)
        if args["strategy"] in ("group", "tensor_group"):
            args["group_size"] = size
            grid = (rows, columns // size)
        elif args["strategy"] == "block":
            args["block_structure"] = [16, 64]
            grid = (-(-rows // 16), -(-columns // 64))
        elif args["strategy"] == "tensor":
            grid = (1,)
        return self.compressed_by(name, args, (rows, columns), grid)

    def compressed_by(
        self,
        name: str,
        args: dict[str, Any],
        shape: tuple[int, int],
        grid: tuple[int, ...],
    ) -> Case:
        scale = self.normal(*grid).abs() + 0.01
        if "fp4" not in name:
            # Values of fewer bits would round in the package.
            scale = scale.to(self.draw.choice([torch.float32, torch.bfloat16])).float()
        state = {"weight": self.normal(*shape), "weight_scale": scale}
        if not args["symmetric"]:
            half = 1 << (args["num_bits"] - 1)
            zero = self.integers(2 * half, *grid) - half
            state["weight_zero_point"] = zero.to(torch.int8)
        if name == "nvfp4-pack-quantized":
            state["weight_global_scale"] = self.normal(1).abs() * 100 + 1
        scheme = QuantizationScheme(
            targets=["Linear"], weights=QuantizationArgs(**args), format=name
        )
        compressor = BaseCompressor.get_value_from_registry(name)
        tensors = compressor.compress(state, scheme)
        expected = compressor.decompress(tensors, scheme)["weight"]
        if "fp4" in name:
            expected = self.of_fp4(tensors, name, expected)
        groups = {"group_0": {"targets": ["Linear"], "weights": args}}
        if self.draw.random() < 0.3:
            other = dict(args, num_bits=4 if args["num_bits"] == 8 else 8)
            other["strategy"] = "block"
            other["block_structure"] = [7, 7]
            other.pop("group_size", None)
            groups["group_1"] = {"targets": ["re:.*down_proj"], "weights": other}
        config = {
            "quant_method": "compressed-tensors",
            "format": name,
            "config_groups": groups,
        }
        return Case(tensors, config, expected)

    def of_fp4(self, tensors: dict[str, Tensor], name: str, rounded: Tensor) -> Tensor:
        """Returns the values in float32, which the package rounds to bfloat16."""
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        stored = tensors["weight_packed"]
        codes = torch.stack([stored & 15, stored >> 4], -1).flatten(1).long()
        values = table[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
        scale = tensors["weight_scale"]
        if name.startswith("nv"):
            factors = scale.float() / tensors["weight_global_scale"]
        else:
            factors = torch.exp2(scale.float() - 127)
        size = values.shape[1] // factors.shape[1]
        result = values * factors.repeat_interleave(size, 1)
        assert torch.equal(result.bfloat16(), rounded)
        return result

    def four_bits(self) -> Case:
        kind = self.draw.choice(["nf4", "fp4"])
        columns = self.draw.choice([64, 256, 2 * self.draw.randrange(1, 80)])
        shape = [self.draw.randrange(1, 50), columns]
        nested = self.draw.random() < 0.5
        storage = self.draw.choice([torch.uint8, torch.uint8, torch.bfloat16])
        if storage != torch.uint8:
            shape[1] *= 2
        weight, state = bnb.quantize_4bit(
            self.normal(*shape).half(),
            blocksize=self.draw.choice([64, 128, 256]),
            compress_statistics=nested,
            quant_type=kind,
            quant_storage=storage,
        )
        tensors = {"weight": weight}
        for key, value in state.as_dict(packed=True).items():
            tensors[f"weight.{key}"] = value
        state.dtype = torch.float32
        scale = state.absmax
        if nested:
            scale = bnb.dequantize_blockwise(scale, state.state2) + state.offset
        stored = weight.view(torch.uint8).flatten()
        codes = torch.stack([stored >> 4, stored & 15], -1).flatten().long()
        scale = scale.repeat_interleave(state.blocksize)[: codes.numel()]
        expected = (state.code[codes] * scale).reshape(shape)
        # The package's kernel for the CPU takes scales of other blocks where a
        # block ends within a row, and reads zeros of FP4 as -0.
        if shape[1] % state.blocksize == 0:
            assert torch.equal(bnb.dequantize_4bit(weight, state), expected)
        config = self.draw.choice(
            [None, {"quant_method": "bitsandbytes", "load_in_4bit": True}]
        )
        return Case(tensors, config, expected)

    def int8(self) -> Case:
        weight = self.normal(self.draw.randrange(1, 50), self.draw.randrange(1, 80))
        stored, scale, _ = bnb.int8_vectorwise_quant(weight.half())
        tensors = {"SCB": scale.float(), "weight": stored}
        if self.draw.random() < 0.7:
            tensors["weight_format"] = torch.tensor(0, dtype=torch.uint8)
        config = self.draw.choice(
            [None, {"quant_method": "bitsandbytes", "load_in_8bit": True}]
        )
        return Case(tensors, config, bnb.int8_vectorwise_dequant(stored, scale.float()))

    def case(self) -> tuple[str, Case]:
        kinds: list[Callable[[], Case]] = [self.fp8, self.gptq, self.awq]
        if BaseCompressor is not None:
            kinds += [self.compressed, self.compressed]
        if bnb is not None:
            kinds += [self.four_bits, self.int8]
        kind = self.draw.choice(kinds)
        return kind.__name__, kind()

    def change(self, case: Case) -> None:
        """Makes tensors not fit together, or the configuration not fit them."""
        name = self.draw.choice(sorted(case.tensors))
        tensor = case.tensors[name]
        kind = self.draw.randrange(6)
        if kind == 0:
            del case.tensors[name]
        elif kind == 1 and tensor.dim() > 0:
            case.tensors[name] = tensor[:-1].clone()
        elif kind == 2 and tensor.dim() > 0:
            copies = tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
            case.tensors[name] = torch.cat([copies, copies[:1]]).view(tensor.dtype)
        elif kind == 3:
            case.tensors[name] = tensor.float().to(
                self.draw.choice([torch.int64, torch.float64, torch.int16])
            )
        elif kind == 4:
            case.tensors[name] = tensor[None].clone()
        elif case.config is not None:
            case.config["quant_method"] = self.draw.choice(["hqq", "quanto", "awq"])


def joined_names(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Returns the names of tensors that the reader made."""
    return {
        name
        for name, value in after.items()
        if name not in before or before[name].dtype != value.dtype
    }


def check(
    draw: random.Random, reader: Reader, folder: pathlib.Path
) -> tuple[str, str, bool]:
    """Returns the kind, a problem or "", and whether the weight was read."""
    grammar = Grammar(draw)
    kind, case = grammar.case()
    changed = draw.random() < 0.3
    if changed:
        grammar.change(case)
    start = draw.choice(["", "layers.0.q_proj."])
    items = [(start + name, value) for name, value in case.tensors.items()]
    items += [("x.weight", torch.ones(2)), (f"{start}bias", torch.ones(3))]
    draw.shuffle(items)
    config: dict[str, Any] = {"model_type": "llama"}
    if case.config is not None:
        config["quantization_config"] = case.config
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "file"
    tensors = {name: value.contiguous() for name, value in items}
    if save_file is not None and draw.random() < 0.5:
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    found, read = reader.read(path)
    if "error" in found:
        return kind, found["error"], False
    name = f"{start}weight"
    if name in found["unreadable"]:
        return kind, "" if changed else found["unreadable"][name], False
    if len(read) != 3 or name not in read:
        missing = f"read {sorted(read)} of {sorted(tensors)}"
        return kind, "" if changed else missing, False
    if changed and case.config is None and name not in joined_names(tensors, read):
        # Nothing says that it is quantized without its scale.
        return kind, "", False
    if changed and read[name].shape != case.weight.shape:
        # One scale for the whole tensor fits any number of rows.
        return kind, "", False
    problem = difference(read[name], case.weight)
    for other in ("x.weight", f"{start}bias"):
        problem = problem or difference(read[other], tensors[other])
    return kind, problem, True


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    wrong = 0
    read: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        reader = Reader(sys.argv[1], folder)
        for seed in range(first, first + count):
            kind, problem, was_read = check(random.Random(seed), reader, folder)
            read[kind] = read.get(kind, 0) + was_read
            if problem:
                wrong += 1
                print(f"file {seed} ({kind}): {problem[:500]}")
    print(f"{count} files: {read} read and equal, {wrong} wrong")
    for package, module in (
        ("bitsandbytes", bnb),
        ("compressed-tensors", BaseCompressor),
    ):
        if module is None:
            print(f"without the package {package}")
    if wrong or sum(read.values()) < count // 2:
        sys.exit(1)


if __name__ == "__main__":
    main()
