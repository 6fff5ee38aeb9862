#!/usr/bin/env python3
"""Measures attention of heads that share keys against what Python users have.

Ours is the operator torch_attention::attention; the others are LibTorch's SDPA,
flex attention as torch.compile makes it (a C++ compiler is needed), and ONNX
Runtime's GroupQueryAttention with its cache in place (needs onnx and
onnxruntime). Each attends the last T of S tokens to all before them. Interleaved;
outputs are compared first.

    python benchmarks/grouped.py build/release/lib
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.agreement import difference
from harness.machine import describe_machine
from harness.measure import Effort, interleave, ratio, spread, timer
from harness.report import ratio_text, time_text

HEADS = 32
KEY_HEADS = 8
HEAD_DIM = 128
EFFORT = Effort(5, 5, 31)
# The part of the largest element by which outputs may differ.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 3e-2}

Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Case:
    T: int
    S: int
    dtype: torch.dtype

    def name(self) -> str:
        kind = {1: "step", self.S: "prompt"}.get(self.T, f"chunk of {self.T}")
        return f"{kind}, S {self.S}, {str(self.dtype)[6:]}"


CASES = [
    Case(T, S, dtype)
    for dtype in (torch.float32, torch.bfloat16)
    for T, S in ((1, 4096), (1, 32768), (4, 4096), (16, 4096), (2048, 2048))
]


@dataclass(frozen=True)
class Inputs:
    """query (1, H, T, D); key and value (1, G, S, D)"""

    query: Tensor
    key: Tensor
    value: Tensor


def draw(case: Case) -> Inputs:
    torch.manual_seed(0)

    def part(heads: int, tokens: int) -> Tensor:
        return torch.randn(1, heads, tokens, HEAD_DIM).to(case.dtype)

    return Inputs(
        part(HEADS, case.T), part(KEY_HEADS, case.S), part(KEY_HEADS, case.S)
    )


def ours(x: Inputs) -> Run:
    attention = torch.ops.torch_attention.attention
    return lambda: attention(
        x.query, x.key, x.value, causal=True, enable_gqa=True
    )


def sdpa(x: Inputs) -> Run:
    T, S = x.query.size(2), x.key.size(2)
    options = {"enable_gqa": True}
    if T == S:
        options["is_causal"] = True
    elif T > 1:
        mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        options["attn_mask"] = mask
    return lambda: F.scaled_dot_product_attention(x.query, x.key, x.value, **options)


def flex(x: Inputs) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    T, S = x.query.size(2), x.key.size(2)

    def is_visible(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query + (S - T) >= key

    mask = create_block_mask(is_visible, None, None, T, S, device="cpu")
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, fullgraph=True)
    return lambda: compiled(
        x.query, x.key, x.value, block_mask=mask, enable_gqa=True
    )


def onnx_model() -> bytes:
    """One node: query, new keys and values (1, T, heads * D), and a cache."""
    import onnx

    h, int32 = onnx.helper, onnx.TensorProto.INT32
    float32 = onnx.TensorProto.FLOAT

    def tensor(name: str, kind: int, shape: list[str | int]) -> object:
        return h.make_tensor_value_info(name, kind, shape)

    keys = KEY_HEADS * HEAD_DIM
    cache = [1, KEY_HEADS, "S", HEAD_DIM]
    inputs = [
        tensor("query", float32, [1, "T", HEADS * HEAD_DIM]),
        tensor("key", float32, [1, "T", keys]),
        tensor("value", float32, [1, "T", keys]),
        tensor("past_key", float32, cache),
        tensor("past_value", float32, cache),
        tensor("last", int32, [1]),
        tensor("total", int32, []),
    ]
    outputs = [
        tensor("output", float32, [1, "T", HEADS * HEAD_DIM]),
        tensor("present_key", float32, cache),
        tensor("present_value", float32, cache),
    ]
    node = h.make_node(
        "GroupQueryAttention",
        [x.name for x in inputs],
        [x.name for x in outputs],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=KEY_HEADS,
    )
    opsets = [h.make_opsetid("", 20), h.make_opsetid("com.microsoft", 1)]
    graph = h.make_graph([node], "attention", inputs, outputs)
    model = h.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString()


def onnx_runtime(x: Inputs) -> Run:
    import onnxruntime

    T, S = x.query.size(2), x.key.size(2)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    # Its threads would wait for work on the cores that the others measure on.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        onnx_model(), settings, providers=["CPUExecutionProvider"]
    )
    output = torch.empty(1, T, HEADS * HEAD_DIM)
    past = [torch.zeros(1, KEY_HEADS, S, HEAD_DIM) for _ in range(2)]
    for cache, whole in zip(past, (x.key, x.value), strict=True):
        cache[:, :, : S - T] = whole[:, :, : S - T]

    def rows(tensor: Tensor) -> Tensor:
        return tensor.transpose(1, 2).flatten(2).contiguous()

    new = [rows(tensor[:, :, S - T :]) for tensor in (x.key, x.value)]
    query = rows(x.query)
    binding = session.io_binding()

    def bind(to: Callable[..., None], name: str, tensor: Tensor) -> None:
        array = tensor.numpy()
        to(name, "cpu", 0, array.dtype, list(tensor.shape), tensor.data_ptr())

    last = torch.tensor([S - 1], dtype=torch.int32)
    total = torch.tensor(S, dtype=torch.int32)
    bound = {
        "query": query,
        "key": new[0],
        "value": new[1],
        "past_key": past[0],
        "past_value": past[1],
        "last": last,
        "total": total,
    }
    for name, tensor in bound.items():
        bind(binding.bind_input, name, tensor)
    # The cache is written where it is.
    for name, tensor in zip(
        ("output", "present_key", "present_value"), (output, *past), strict=True
    ):
        bind(binding.bind_output, name, tensor)

    def run() -> Tensor:
        assert bound  # The session has their addresses only.
        session.run_with_iobinding(binding)
        return output.view(1, T, HEADS, HEAD_DIM).transpose(1, 2)

    return run


def has(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) for module in modules)


def candidates(case: Case, x: Inputs) -> dict[str, Run]:
    found = {"ours": ours(x), "SDPA": sdpa(x), "flex attention": flex(x)}
    # Its operator computes float32 alone on CPUs.
    if case.dtype == torch.float32 and has("onnx", "onnxruntime"):
        found["ONNX Runtime"] = onnx_runtime(x)
    return found


def measure(case: Case) -> bool:
    """Prints the row of a case. Returns whether all outputs agree."""
    x = draw(case)
    runs = candidates(case, x)
    expected = runs["SDPA"]().float()
    agree = True
    for name, run in list(runs.items()):
        distance = difference([run().float()], [expected])
        if not distance <= ALLOWED[case.dtype]:
            print(f"{case.name()}: {name} differs by {distance:.1e}")
            agree = False
            del runs[name]
    if "ours" not in runs:
        return False
    seconds = interleave([timer(run) for run in runs.values()], EFFORT)
    by_name = dict(zip(runs, seconds, strict=True))
    columns = [time_text(spread(by_name["ours"])["median"])]
    for name in ("SDPA", "flex attention", "ONNX Runtime"):
        taken = by_name.get(name)
        if taken is None:
            columns.append("–")
            continue
        columns.append(ratio_text(ratio(taken, by_name["ours"])))
    print(f"| {case.name()} | {' | '.join(columns)} |", flush=True)
    return agree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path, help="folder of the library")
    parser.add_argument("--only", default="", help="cases with this text in their names")
    options = parser.parse_args()
    torch.ops.load_library(options.library / "libtorch_attention.so")
    machine = describe_machine()
    print(
        f"{machine['cpu']}, {machine['threads']} threads, "
        f"PyTorch {machine['libtorch']}\n"
        "\n| work | ours | SDPA | flex attention | ONNX Runtime |"
        "\n| --- | --- | --- | --- | --- |"
    )
    with torch.no_grad():
        agree = [measure(case) for case in CASES if options.only in case.name()]
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
