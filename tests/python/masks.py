"""MaskMod, BlockMask and flex_attention of the package, beside FlexAttention itself.

    python masks.py

Random masks are compared with the same masks of FlexAttention: its dense masks, its
uncompiled attention in float64, its compiled attention where it compiles here, and
LibTorch's gradients of a dense mask. If `onnx` is there, its cases of FlexAttention are
computed, too.
"""

from __future__ import annotations

import copy
import importlib
import io
import os
import pickle
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention as flex

import torch_attention
from torch_attention import BlockMask, MaskMod

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def close(actual: Any, expected: Any, **tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, **(tolerance or {"rtol": 1e-7, "atol": 1e-9}))


def error_of(kind: type[Exception], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"expected {kind.__name__}")


def theirs(*x: Tensor, **options: Any) -> Any:
    """FlexAttention as it is, without torch.compile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # It refuses tensors that require gradients on the CPU.
        x = tuple(t.detach() for t in x)
        return flex.flex_attention(*x, **options)


# --- Random masks, as values of ours and as functions of FlexAttention ---------------


def draw_rule(B: int, H: int, T: int) -> tuple[MaskMod, Function]:
    n, after = random.randint(1, T), random.randint(0, T)
    ids = torch.randint(-1, 4, (B, T)).sort(-1)[0]
    lengths = torch.randint(0, T + 1, (B,))
    starts = torch.tensor([0, *sorted(random.choices(range(T + 1), k=3)), T])
    numbers = torch.bucketize(torch.arange(T), starts, right=True)
    # As many blocks as the positions need.
    rows, columns = T // n + 1, T // (after + 1) + 1
    sees = torch.rand(B, H, rows, columns) < 0.5
    heads = torch.rand(H) < 0.5

    def of_documents(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (ids[b, q] == ids[b, k]) & (ids[b, q] >= 0)

    def reducing(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        # Right for single numbers only.
        return torch.stack([q % 3 == 0, k % 2 == 0, heads[h]]).any()

    return random.choice(
        [
            (MaskMod.causal(), lambda b, h, q, k: k <= q),
            (MaskMod.window(n), lambda b, h, q, k: k > q - n),
            (MaskMod.window(n, after), lambda b, h, q, k: (k > q - n) & (k <= q + after)),
            (MaskMod.chunk(n), lambda b, h, q, k: q // n == k // n),
            (MaskMod.documents(ids), of_documents),
            (MaskMod.packed_documents(starts), lambda b, h, q, k: numbers[q] == numbers[k]),
            (MaskMod.prefix(after), lambda b, h, q, k: (k < after) | (q < 0)),
            (MaskMod.prefix(lengths), lambda b, h, q, k: k < lengths[b]),
            (
                MaskMod.blocks(sees, n, after + 1),
                lambda b, h, q, k: sees[b, h, q // n, k // (after + 1)],
            ),
            (MaskMod.function(reducing), reducing),
        ]
    )


def draw(B: int, H: int, T: int, depth: int = 3) -> tuple[MaskMod, Function]:
    if depth == 0 or random.random() < 0.3:
        return draw_rule(B, H, T)
    a, f = draw(B, H, T, depth - 1)
    if random.random() < 0.25:
        return ~a, lambda b, h, q, k: ~f(b, h, q, k)
    b, g = draw(B, H, T, depth - 1)
    if random.random() < 0.5:
        return a & b, flex.and_masks(f, g)
    return a | b, flex.or_masks(f, g)


def inputs(B: int, H: int, G: int, T: int, grad: bool = True) -> list[Tensor]:
    shapes = (B, H, T, 8), (B, G, T, 8), (B, G, T, 8)
    return [torch.randn(s, dtype=torch.float64, requires_grad=grad) for s in shapes]


def dense_attention(x: list[Tensor], sees: Tensor) -> Tensor:
    """LibTorch's attention; zeros for queries that see no key."""
    rows = sees.any(-1, keepdim=True)
    y = F.scaled_dot_product_attention(*x, attn_mask=sees | ~rows, enable_gqa=True)
    return y.masked_fill(~rows, 0)


def test_random_masks() -> None:
    for i in range(60 if os.environ.get("TORCH_ATTENTION_NIGHTLY") else 25):
        B, G, T = random.choice([1, 2]), random.choice([1, 2]), random.randint(1, 300)
        H = G * random.choice([1, 2])
        mod, function = draw(B, H, T)
        sees = flex.create_mask(function, B, H, T, T, device="cpu")
        mask = BlockMask(mod, T, batch_size=B, num_heads=H)
        by_function = BlockMask(MaskMod.function(function), T, batch_size=B, num_heads=H)
        size = random.choice([16, 64, 100, (128, 64)])
        their_mask = flex.create_block_mask(function, B, H, T, T, device="cpu", BLOCK_SIZE=size)
        converted = BlockMask.from_flex_attention(their_mask)
        for one in (mask, by_function, converted):
            assert torch.equal(~one.hidden(), sees), f"another mask: {i}, {mod}"
        x = inputs(B, H, G, T)
        expected = theirs(*x, block_mask=their_mask, enable_gqa=True)
        dense = dense_attention(x, sees)
        close(dense, expected)
        direction = torch.randn_like(dense)
        gradients = torch.autograd.grad(dense, x, direction)
        for given in (mask, mask.packed, their_mask):
            y = torch_attention.flex_attention(*x, block_mask=given, enable_gqa=True)
            close(y, expected)
            close(torch.autograd.grad(y, x, direction), gradients)
        y = torch_attention.attention(*x, block_mask=mask, enable_gqa=True, scale=0.3)
        close(y, theirs(*x, block_mask=their_mask, enable_gqa=True, scale=0.3))
        y, weights = torch_attention.attention_with_weights(
            *x, block_mask=mask, enable_gqa=True
        )
        close(y, expected)
        assert not weights[~sees].any(), f"weights of hidden keys: {i}, {mod}"


def test_offsets() -> None:
    """New tokens after those of a cache, by functions and by rules."""
    ids = torch.tensor([[0] * 50 + [1] * 50, [0] * 20 + [1] * 80])
    first = torch.tensor([30, 93])
    mod = MaskMod.causal() & MaskMod.documents(ids)
    function = MaskMod.function(lambda b, h, q, k: (k <= q) & (ids[b, q] == ids[b, k]))
    found = []
    for one in (mod, function):
        mask = BlockMask(one, 7, 100, batch_size=2, query_offsets=first)
        assert mask.shape == (2, 1, 7, 100), mask
        found.append(mask.hidden())
    q, k = torch.arange(7) + first[:, None], torch.arange(100)
    sees = (k <= q[..., None]) & (ids.gather(1, q)[..., None] == ids[:, None])
    for hidden in found:
        assert torch.equal(~hidden[:, 0], sees)
    last = BlockMask(MaskMod.causal(), 1, 9, query_offsets=8)
    assert not last.hidden().any()


def test_functions_are_called_where_rules_do_not_decide() -> None:
    calls = []

    def function(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        calls.append(1)
        return k % 2 == 0

    T = 512
    BlockMask(MaskMod.function(function), T)
    assert len(calls) == T // 64, f"{len(calls)} calls for {T // 64} rows of tiles"
    calls.clear()
    near = MaskMod.window(64, 0)
    BlockMask(near & (MaskMod.chunk(64) | MaskMod.function(function)), T)
    assert len(calls) == T // 64 - 1, f"{len(calls)} calls for the tiles beside the diagonal"
    calls.clear()
    BlockMask(MaskMod.prefix(0) & MaskMod.function(function), T)
    assert not calls


def test_block_sparse_masks_of_flex_attention() -> None:
    """Masks that are made of blocks alone, and mask_mod where blocks are partial."""
    numbers = torch.tensor([[[2, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[2, 0, 7], [1, 9, 9]]]], dtype=torch.int32)
    indices[indices > 2] = 2  # what is behind the number of blocks means nothing
    mask = flex.BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=(32, 48))
    sees = torch.zeros(64, 144, dtype=torch.bool)
    sees[:32, 96:] = sees[:32, :48] = sees[32:, 48:96] = True
    assert torch.equal(~BlockMask.from_flex_attention(mask).hidden()[0, 0], sees)
    mask = flex.BlockMask.from_kv_blocks(
        numbers, indices, numbers[:, :, [1, 1]] * 0 + 1, torch.full((1, 1, 2, 3), 1).int(),
        BLOCK_SIZE=(32, 48), mask_mod=lambda b, h, q, k: k % 2 == 0,
    )
    sees &= torch.arange(144) % 2 == 0
    sees[:, 48:96] = True
    assert torch.equal(~BlockMask.from_flex_attention(mask).hidden()[0, 0], sees)
    sliced = flex.create_block_mask(
        lambda b, h, q, k: k <= q, 2, 1, 64, 64, device="cpu"
    )[0:1]
    if hasattr(flex, "_sliced_mask_mod_error"):
        text = error_of(RuntimeError, lambda: BlockMask.from_flex_attention(sliced))
        assert "sliced" in text, text
    # No mask, and the mask of one block for any length.
    x = inputs(1, 2, 2, 70, grad=False)
    close(torch_attention.flex_attention(*x), theirs(*x))
    empty = flex._create_empty_block_mask(x[0], x[1])
    close(torch_attention.flex_attention(*x, block_mask=empty), theirs(*x))


def test_compiled_flex_attention() -> None:
    """Its compiled kernel, which computes blocks, gives the same numbers."""
    if shutil.which("g++") is None:
        print("no g++: without FlexAttention's compiled kernel")
        return
    T = 600
    ids = torch.randint(0, 4, (2, T)).sort(-1)[0]

    def function(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (ids[b, q] == ids[b, k])

    mask = flex.create_block_mask(function, 2, None, T, T, device="cpu")
    x = [torch.randn(2, 4, T, 16) for _ in range(3)]
    torch.compiler.reset()
    expected = torch.compile(flex.flex_attention)(*x, block_mask=mask)
    close(torch_attention.flex_attention(*x, block_mask=mask), expected, rtol=1e-4, atol=1e-5)


def test_compile() -> None:
    """torch.compile takes our masks, with gradients and in one graph."""
    mod, _ = draw(1, 1, 100)
    mask = BlockMask(mod, 100)
    calls = {
        "attention": lambda *x: torch_attention.attention(*x, block_mask=mask.packed),
        "a mask": lambda *x: torch_attention.attention(*x, block_mask=mask),
        "flex_attention": lambda *x: torch_attention.flex_attention(*x, block_mask=mask),
    }
    for name, call in calls.items():
        torch.compiler.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        found = []
        for function in (call, compiled):
            torch.manual_seed(3)
            x = inputs(1, 2, 2, 100)
            y = function(*x)
            found.append((y, torch.autograd.grad(y.sin().sum(), x)))
        close(*found)
        print("compiled in one graph:", name)

    # Masks are made beside the graph, of the numbers of each call.
    def packed(x: list[Tensor], ids: Tensor) -> Tensor:
        same = MaskMod.function(lambda b, h, q, k: ids[q] == ids[k])
        mask = BlockMask(MaskMod.causal() & same, 100)
        return torch_attention.attention(*x, block_mask=mask)

    flexible = torch.compile(torch_attention.flex_attention, backend="aot_eager")
    compiled = torch.compile(packed, backend="aot_eager")
    for length in (30, 7, 50):
        ids = torch.arange(100) // length
        their_mask = flex.create_block_mask(
            lambda b, h, q, k, ids=ids: (k <= q) & (ids[q] == ids[k]),
            1, 1, 100, 100, device="cpu",
        )
        expected = packed(x, ids)
        close(compiled(x, ids), expected)
        close(flexible(*x, block_mask=their_mask), expected)


def test_import_is_quick() -> None:
    """The compiler, whose import takes seconds, is not imported."""
    code = "import sys, torch_attention; print('torch._dynamo' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert output.stdout.strip() == b"False"


def test_values() -> None:
    ids = torch.zeros(200, dtype=torch.long)
    mod = MaskMod.causal() & ~MaskMod.documents(ids)
    assert repr(mod) == "MaskMod(causal documents not and)", mod
    ids[100:] = 1  # they were copied
    assert BlockMask(mod, 200).hidden().all()
    mask = BlockMask(MaskMod.causal(), 200, batch_size=2, num_heads=3)
    sizes = mask.batch_size, mask.num_heads, mask.num_queries, mask.num_keys
    assert sizes == mask.shape == (2, 3, 200, 200), sizes
    assert mask.density == 10 / 16 and mask.nbytes == mask.packed.nbytes
    text = repr(mask)
    assert text.startswith("BlockMask(batch_size=2, num_heads=3, num_queries=200"), text
    assert "density=0.625" in text, text
    file = io.BytesIO()
    torch.save(mask.packed, file)
    file.seek(0)
    for other in (
        pickle.loads(pickle.dumps(mask)),
        copy.deepcopy(mask),
        BlockMask.unpack(torch.load(file, weights_only=True)),
    ):
        assert torch.equal(other.packed, mask.packed) and other.shape == mask.shape


def test_errors() -> None:
    q, k, v = inputs(1, 2, 2, 70)
    ours = torch_attention.flex_attention
    mask = BlockMask(MaskMod.causal(), 70)

    def fails(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        raise KeyError("of the function")

    for kind, message, call in (
        (ValueError, "Use torch_attention.attention with block_mask and",
         lambda: ours(q, k, v, lambda s, b, h, i, j: s)),
        (ValueError, "no return_lse", lambda: ours(q, k, v, return_lse=True)),
        (ValueError, "no return_lse", lambda: ours(q, k, v, return_aux=object())),
        (ValueError, "of four dimensions", lambda: ours(q[0], k, v)),
        (TypeError, "but got function", lambda: ours(q, k, v, block_mask=lambda: 0)),
        (RuntimeError, "expected a block_mask for the scores",
         lambda: ours(q[:, :, 1:], k, v, block_mask=mask)),
        (TypeError, "expected a MaskMod", lambda: BlockMask(lambda b, h, q, k: q, 70)),
        (TypeError, "expected a function", lambda: MaskMod.function(3)),
        (TypeError, "unsupported operand", lambda: MaskMod.causal() & True),
        (TypeError, "integer", lambda: MaskMod.chunk(1.5)),
        (RuntimeError, "window", lambda: BlockMask(MaskMod.window(0), 70)),
        (RuntimeError, "expected a function that gives a bool tensor",
         lambda: BlockMask(MaskMod.function(lambda b, h, q, k: q + k), 70)),
        (KeyError, "of the function", lambda: BlockMask(MaskMod.function(fails), 70)),
        (RuntimeError, "expected query_offsets", lambda: BlockMask(MaskMod.causal(), 3, 4)),
        (RuntimeError, "BlockMask: expected", lambda: BlockMask.unpack(torch.zeros(9).long())),
        (TypeError, "", lambda: torch.add(mask, 1)),
    ):
        text = error_of(kind, call)
        assert message in text, f"another message: {text}"
    # Numbers of functions that failed are free again.
    assert not torch_attention._masks._functions


def test_onnx() -> None:
    """The cases of ONNX's FlexAttention that rules of ours compute."""
    try:
        name = "onnx.backend.test.case.node"
        base = importlib.import_module("onnx.backend.test.case.base")
        cases = importlib.import_module(name + ".flexattention")
    except ImportError:
        print("no onnx with FlexAttention: without its cases")
        return
    found = []
    cases.expect = lambda node, inputs, outputs, name, **_: found.append(
        (node, inputs, outputs, name)
    )
    assert issubclass(cases.FlexAttention, base.Base)
    for export in [f for n, f in vars(cases.FlexAttention).items() if n.startswith("export")]:
        export.__func__()
    compared = 0
    for node, given, (expected,), name in found:
        attributes = {a.name: a for a in node.attribute}
        mod = attributes.pop("score_mod", None)
        is_causal = mod is not None and mod.g.name == "score_mod_causal_mask"
        if (mod and not is_causal) or set(attributes) - {"scale"} or expected.itemsize < 4:
            continue
        q, k, v = (torch.from_numpy(x) for x in given)
        mask = None
        if is_causal:
            mask = BlockMask(MaskMod.causal(), q.shape[2], k.shape[2], query_offsets=0)
        scale = attributes["scale"].f if attributes else None
        y = torch_attention.flex_attention(q, k, v, None, mask, scale, enable_gqa=True)
        close(y, torch.from_numpy(expected), rtol=1e-4, atol=1e-5)
        print("as ONNX's reference:", name)
        compared += 1
    assert compared >= 4, f"only {compared} of {len(found)} cases"


torch.manual_seed(1)
random.seed(1)
for test in [f for n, f in list(globals().items()) if n.startswith("test_")]:
    test()
    print("passed:", test.__name__)
