"""Our operators on a CUDA device, if there is one.

    python cuda_devices.py LIBRARY

LIBRARY is libtorch_attention.so. No call waits for the device or forms a tensor with an
element for each query and key, a CUDA graph captures a step of decoding, other streams
and torch.compile give the results of the CPU. Exits with 77 where there is no device.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

torch.ops.load_library(sys.argv[1])
ops = torch.ops.torch_attention

HALF_PRECISION = (torch.float16, torch.bfloat16)
TOKENS = 2048
Rule = dict[str, Any]


def close(found: Tensor, expected: Tensor, allowed: float, where: str) -> None:
    distance = (found.cpu().double() - expected.cpu().double()).abs().max().item()
    if not distance <= allowed:
        raise AssertionError(f"{where}: expected at most {allowed}, but got {distance}")


def moved(rule: Rule) -> Rule:
    return {k: x.cuda() if isinstance(x, Tensor) else x for k, x in rule.items()}


def inputs(T: int, S: int, D: int = 64, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    sizes = [(2, 8, T, D), (2, 2, S, D), (2, 2, S, D)]
    return [torch.randn(size).to(dtype) for size in sizes]


def rules(dtype: torch.dtype) -> Iterator[Rule]:
    """Yields rules that LibTorch's kernels compute without a mask (T, S)."""
    slopes = 2.0 ** -torch.arange(1.0, 9.0)
    yield {}
    yield {"causal": True}
    yield {"causal": True, "window": 100}
    yield {"causal": True, "chunk": 256}
    yield {"causal": True, "sinks": slopes}
    yield {"causal": True, "cu_seqlens": None}
    if dtype in HALF_PRECISION:
        yield {"window": 100, "window_after": 50}
    else:
        yield {"causal": True, "alibi_slopes": slopes}
        yield {"causal": True, "key_lengths": torch.tensor([1900, TOKENS])}
        yield {"causal": True, "mask": torch.rand(2, 1, 1, TOKENS) < 0.3}


@contextlib.contextmanager
def without_waits() -> Iterator[None]:
    """An operation that waits for the device is an error within."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def packed(tensors: list[Tensor], rule: Rule) -> tuple[list[Tensor], Rule]:
    if "cu_seqlens" not in rule:
        return tensors, rule
    rule = {**rule, "cu_seqlens": torch.tensor([0, 100, 101, 700, TOKENS])}
    return [x[:1] for x in tensors], rule


def check_lean_calls() -> None:
    T = TOKENS
    for dtype in (torch.float32, *HALF_PRECISION):
        for one in rules(dtype):
            host, rule = packed(inputs(T, T, dtype=dtype), one)
            where = f"{dtype}, {one.keys()}"
            expected = ops.attention(*(x.float() for x in host), enable_gqa=True, **rule)
            leaves = [x.cuda().requires_grad_() for x in host]
            options = moved(rule)
            # Starts of packed sequences may stay on the CPU, where they are read.
            if "cu_seqlens" in rule:
                options["cu_seqlens"] = rule["cu_seqlens"]
            grad_output = torch.randn_like(leaves[0])
            ops.attention(*leaves, enable_gqa=True, **options)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with without_waits():
                output = ops.attention(*leaves, enable_gqa=True, **options)
            forward = torch.cuda.max_memory_allocated() - before
            with without_waits():
                torch.autograd.grad(output, leaves, grad_output)
            heads = leaves[0].size(0) * leaves[0].size(1)
            # One bool mask of the heads, or scores, would be more.
            if forward >= heads * T * T:
                raise AssertionError(f"{where}: took {forward} bytes")
            allowed = 2e-2 if dtype in HALF_PRECISION else 1e-4
            close(output.float(), expected, allowed, where)


def check_graph_of_decode() -> None:
    """A captured step is replayed with other numbers and lengths."""
    B, H, G, D, capacity = 3, 8, 2, 64, 512
    for dtype in (torch.float32, torch.bfloat16):
        for rule in ({}, {"window": 40}):
            torch.manual_seed(1)
            caches = [torch.randn(B, G, capacity, D).to(dtype) for _ in range(2)]
            on_device = [x.cuda() for x in caches]
            lengths = torch.tensor([0, 200, 17])
            lengths_there = lengths.cuda()
            static = [
                torch.zeros(B, heads, 1, D, dtype=dtype, device="cuda") for heads in (H, G, G)
            ]

            def step(static: list[Tensor], rule: Rule, where: Any) -> Tensor:
                output = ops.decode(*static, *where[0], where[1], **rule)
                where[1].add_(1)
                return output

            there = (on_device, lengths_there)
            # LibTorch asks for a call on another stream before a capture.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    step(static, rule, there)
            torch.cuda.current_stream().wait_stream(stream)
            for found, cache in zip(on_device, caches, strict=True):
                found.copy_(cache)
            lengths_there.copy_(lengths)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = step(static, rule, there)
            for _ in range(5):
                rows = [torch.randn(B, heads, 1, D).to(dtype) for heads in (H, G, G)]
                for place, row in zip(static, rows, strict=True):
                    place.copy_(row)
                graph.replay()
                as_float = [x.float() for x in caches]
                expected = ops.decode(*(x.float() for x in rows), *as_float, lengths, **rule)
                for cache, changed in zip(caches, as_float, strict=True):
                    cache.copy_(changed)
                lengths += 1
                allowed = 2e-2 if dtype in HALF_PRECISION else 1e-5
                close(output.float(), expected, allowed, f"decode, {dtype}, {rule}")
                for found, cache in zip(on_device, caches, strict=True):
                    close(found, cache, 0, "the cache")


def check_streams() -> None:
    torch.manual_seed(2)
    host = inputs(300, 300)
    expected = ops.attention(*host, causal=True, window=50, enable_gqa=True)
    there = [x.cuda() for x in host]
    for _ in range(4):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            doubled = [x * 1 for x in there]
            output = ops.attention(*doubled, causal=True, window=50, enable_gqa=True)
        stream.synchronize()
        close(output, expected, 1e-4, "on another stream")


def check_compiled() -> None:
    torch.manual_seed(3)
    for dtype in (torch.float32, torch.bfloat16):
        host = inputs(130, 130, dtype=dtype)

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = ops.attention(q * 0.5, k, v, causal=True, window=50, enable_gqa=True)
            return out * 2

        for backward in (False, True):
            results = []
            for fn, device, to in (
                (run, "cpu", torch.float32),
                (torch.compile(run, fullgraph=True), "cuda", dtype),
            ):
                leaves = [x.to(device, to).requires_grad_(backward) for x in host]
                found = [fn(*leaves)]
                if backward:
                    found += torch.autograd.grad(found[0], leaves, torch.ones_like(found[0]))
                results.append(found)
            for found, expected in zip(results[1], results[0], strict=True):
                allowed = (4e-2 if dtype in HALF_PRECISION else 1e-4) * expected.abs().max()
                close(found.float(), expected, allowed.item(), f"compiled, {dtype}")


def check_autocast() -> None:
    torch.manual_seed(4)
    host = inputs(200, 200)
    there = [x.cuda() for x in host]
    expected = ops.attention(*host, causal=True, window=30, enable_gqa=True)
    with torch.autocast("cuda", torch.bfloat16):
        output = ops.attention(*there, causal=True, window=30, enable_gqa=True)
    if output.dtype != torch.bfloat16:
        raise AssertionError(f"autocast: expected bfloat16, but got {output.dtype}")
    close(output.float(), expected, 2e-2, "autocast")


def check_block_mask() -> None:
    host = inputs(130, 130)
    documents = torch.randint(4, (2, 130)).sort()[0]
    mask = ops.block_mask("causal documents 0 none and", [documents], 130, 130, batch_size=2)
    expected = ops.attention(*host, enable_gqa=True, block_mask=mask)
    found = ops.attention(*(x.cuda() for x in host), enable_gqa=True, block_mask=mask)
    close(found, expected, 1e-5, "a block mask")


def check_replaced() -> None:
    """LibTorch's attention of CUDA tensors is LibTorch's after replace_sdpa()."""
    host = inputs(130, 130)
    there = [x.cuda().requires_grad_() for x in host]
    results = []
    for replaced in (False, True):
        if replaced:
            ops.replace_sdpa()
        try:
            output = torch.nn.functional.scaled_dot_product_attention(
                *there, is_causal=True, enable_gqa=True
            )
            results.append([output, *torch.autograd.grad(output.sum(), there)])
        finally:
            ops.restore_sdpa()
    for found, expected in zip(*results, strict=True):
        close(found, expected, 1e-4, "after replace_sdpa()")


def check_rotary() -> None:
    torch.manual_seed(5)
    x = torch.randn(2, 4, 30, 64)
    positions = torch.randint(4000, (2, 30))
    expected = ops.rotary(x, positions)
    found = ops.rotary(x.cuda(), positions.cuda())
    close(found, expected, 1e-4, "rotary")


CHECKS: tuple[Callable[[], None], ...] = (
    check_lean_calls,
    check_graph_of_decode,
    check_streams,
    check_compiled,
    check_autocast,
    check_block_mask,
    check_replaced,
    check_rotary,
)


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 77
    failed = 0
    for check in CHECKS:
        torch.manual_seed(0)
        try:
            check()
        except Exception:
            traceback.print_exc()
            failed += 1
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
