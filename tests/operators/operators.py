"""Our operators in Python: checked, compiled, exported and scripted.

    python operators.py LIBRARY

LIBRARY is libtorch_attention.so.
"""

import io
import math
import sys
import time

import torch
import torch.nn.functional as F

library = sys.argv[1]
start = time.perf_counter()
torch.ops.load_library(library)
load_ms = (time.perf_counter() - start) * 1e3

ops = torch.ops.torch_attention
TOLERANCE = {"rtol": 1.3e-6, "atol": 1e-5}


def tensors(*shapes, grad=True, dtype=torch.float32):
    return [torch.randn(s, dtype=dtype, requires_grad=grad) for s in shapes]


def close(actual, expected, **tolerance):
    torch.testing.assert_close(actual, expected, **(tolerance or TOLERANCE))


def check(condition, message):
    if not condition:
        sys.exit(message)


def visible(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


# Each rule in terms of LibTorch's own operator.
def cases():
    q, k, v = [torch.randn(2, 4, 5, 8) for _ in range(3)]
    mask = torch.rand(2, 1, 5, 5) > 0.7
    mask[..., 0] = False
    bias = torch.randn(4, 5, 5)
    band = visible(5, 5) & ~visible(5, 5).tril(-2)
    lengths = torch.tensor([3, 5])
    within = (torch.arange(5) < lengths[:, None])[:, None, None]
    few = [torch.randn(2, 2, 5, 8) for _ in range(2)]
    deep = [torch.randn(3, 2, 4, 5, 8) for _ in range(3)]
    flat = [torch.randn(2, 5, 8) for _ in range(3)]
    yield "plain", (q, k, v), {}, {}
    yield "causal", (q, k, v), {"causal": True}, {"is_causal": True}
    yield (
        "window",
        (q, k, v),
        {"causal": True, "window": 2},
        {"attn_mask": band},
    )
    yield "mask", (q, k, v), {"mask": mask}, {"attn_mask": ~mask}
    yield "bias", (q, k, v), {"bias": bias}, {"attn_mask": bias}
    yield "scale", (q, k, v), {"scale": 0.3}, {"scale": 0.3}
    yield (
        "key_lengths",
        (q, k, v),
        {"key_lengths": lengths},
        {"attn_mask": within},
    )
    yield (
        "grouped",
        (q, *few),
        {"enable_gqa": True, "causal": True},
        {"enable_gqa": True, "is_causal": True},
    )
    yield "rank 5", deep, {"causal": True}, {"is_causal": True}
    yield "rank 3", flat, {}, {}
    yield "rank 2", [x[0] for x in flat], {}, {}
    yield "broadcast", (q, k[:, :1], v[:1]), {}, {}


def packed_cases():
    """Three packed sequences, one of them empty, and an equal mask."""
    inputs = [torch.randn(1, 4, 9, 8) for _ in range(3)]
    starts = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    number = torch.tensor([0] * 4 + [2] * 5)
    same = number[:, None] == number
    yield (
        "one set of sequences",
        inputs,
        {"cu_seqlens": starts, "causal": True},
        {"attn_mask": same & visible(9, 9)},
    )
    keys = [torch.randn(1, 4, 7, 8) for _ in range(2)]
    yield (
        "keys of other lengths",
        (inputs[0], *keys),
        {"cu_seqlens": starts, "cu_seqlens_k": torch.tensor([0, 2, 3, 7])},
        {"attn_mask": number[:, None] == torch.tensor([0, 0, 1, 2, 2, 2, 2])},
    )


def test_packed():
    for name, inputs, ours, theirs in packed_cases():
        expected = run(F.scaled_dot_product_attention, inputs, theirs)
        close(run(ops.attention, inputs, ours), expected)
        close(run(compiled(ops.attention), inputs, ours), expected)
        dropped = []
        for function in (ops.attention, compiled(ops.attention)):
            torch.manual_seed(3)
            dropped.append(run(function, inputs, {**ours, "dropout_p": 0.5}))
        close(*dropped)
        check(
            not torch.allclose(dropped[0][0], expected[0]),
            "expected dropout to change packed sequences",
        )
        inputs = [x.requires_grad_() for x in inputs]
        torch.library.opcheck(ops.attention, tuple(inputs), ours)
        print("packed sequences:", name)


def leaves(values):
    return [
        x.detach().clone().requires_grad_(x.is_floating_point())
        if isinstance(x, torch.Tensor)
        else x
        for x in values
    ]


def run(function, inputs, options):
    inputs = leaves(inputs)
    options = dict(zip(options, leaves(options.values())))
    output = function(*inputs, **options)
    output.sin().sum().backward()
    found = [x.grad for x in inputs]
    for name in ("bias", "attn_mask", "sinks", "alibi_slopes"):
        x = options.get(name)
        if x is not None and x.is_floating_point():
            found.append(x.grad)
    return output.detach(), found


def compiled(function):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_rules():
    """Eager and compiled calls are LibTorch's function."""
    for name, inputs, ours, theirs in cases():
        expected = run(F.scaled_dot_product_attention, inputs, theirs)
        close(run(ops.attention, inputs, ours), expected)
        close(run(compiled(ops.attention), inputs, ours), expected)
        close(
            run(lambda *a, **k: ops.attention_with_weights(*a, **k)[0],
                inputs, ours),
            expected,
        )
        print("the same as LibTorch's:", name)


def sdpa_cases():
    """Arguments of F.scaled_dot_product_attention, T != S among them."""
    q, k, v = [torch.randn(2, 4, n, 8) for n in (5, 7, 7)]
    few = [torch.randn(2, 2, 7, 8) for _ in range(2)]
    seen = torch.rand(2, 1, 5, 7) > 0.4
    seen[..., 0] = True
    yield "plain", (q, k, v), {}
    yield "causal", (q, k, v), {"is_causal": True}
    yield "causal, fewer keys", (k, q, q), {"is_causal": True}
    yield "bool mask", (q, k, v), {"attn_mask": seen}
    yield "float mask", (q, k, v), {"attn_mask": torch.randn(4, 5, 7)}
    yield "scale", (q, k, v), {"scale": 0.3}
    yield "grouped", (q, *few), {"enable_gqa": True, "is_causal": True}
    yield "rank 3", (q[0], k[0], v[0]), {"is_causal": True}
    yield "another size of value", (q, k, v[..., :3]), {}


def test_sdpa():
    """scaled_dot_product_attention is put in the place of LibTorch's."""
    ours = ops.scaled_dot_product_attention
    for name, inputs, options in sdpa_cases():
        expected = run(F.scaled_dot_product_attention, inputs, options)
        close(run(ours, inputs, options), expected)
        close(run(compiled(ours), inputs, options), expected)
        torch.library.opcheck(ours, tuple(leaves(inputs)), options)
        print("the same as LibTorch's, by the name of its function:", name)
    q, k, v = tensors((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8))
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(q, k, v, is_causal=True)
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    check(y.dtype == torch.bfloat16, f"autocast gives {y.dtype}")
    close(y, expected, rtol=1.6e-2, atol=1e-2)
    torch.manual_seed(3)
    dropped = ours(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    close(dropped, compiled(ours)(q, k, v, dropout_p=0.5))
    check(not torch.allclose(dropped, ours(q, k, v)), "nothing is dropped")


def test_opcheck():
    check_one = torch.library.opcheck
    q, k, v, bias = tensors((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 3), (5, 6))
    slopes, sinks = tensors((4,), (4,))
    mask = torch.zeros(5, 6, dtype=torch.bool)
    mask[:, 3] = True
    calls = [
        {},
        {"causal": True, "window": 3, "scale": 0.5},
        {"bias": bias, "mask": mask, "alibi_slopes": slopes, "sinks": sinks},
        {"key_lengths": torch.tensor([4, 6]), "softcap": 20.0},
        {"query_offsets": torch.tensor([0, 1]), "causal": True, "chunk": 2},
    ]
    for options in calls:
        for op in (ops.attention, ops.attention_with_weights):
            check_one(op, (q, k, v), options)
    few = tensors((2, 2, 6, 8), (2, 2, 6, 3))
    for shape in ((3, 2, 4, 5, 8), (2, 5, 8), (5, 8)):
        for op in (ops.attention, ops.attention_with_weights):
            check_one(op, tuple(tensors(shape, shape, shape)))
    check_one(ops.attention, (q, *few), {"enable_gqa": True})
    check_one(
        ops.attention,
        tuple(tensors((4, 5, 8), (2, 5, 8), (2, 5, 8))),
        {"enable_gqa": True},
    )
    positions = torch.arange(5)
    for options in ({}, {"interleaved": True, "dim": 4, "theta": 100.0}):
        check_one(ops.rotary, (q, positions), options)
    check_one(ops.rotary, (q, positions.expand(2, 5)), {})
    new = tensors((2, 4, 1, 8), (2, 2, 1, 8), (2, 2, 1, 8), grad=False)
    caches = tensors((2, 2, 7, 8), (2, 2, 7, 8), grad=False)
    check_one(ops.decode, (*new, *caches, torch.tensor([0, 4])))
    with torch.no_grad():
        output, statistics, seed = ops._attention_forward(q, k, v, bias=bias)
    plain = [x.detach() for x in (q, k, v, bias)]
    check_one(ops._attention_forward, tuple(plain[:3]), {"bias": plain[3]})
    wanted = [True, True, True, True, False, False]
    check_one(
        ops._attention_backward,
        (torch.ones_like(output), output, statistics, seed, wanted,
         *plain[:3]),
        {"bias": plain[3]},
    )
    output, weights = ops.attention_with_weights(*plain[:3])
    check_one(
        ops._attention_with_weights_backward,
        (output, weights, output, weights, [True] * 3 + [False] * 3,
         *plain[:3]),
    )
    check_one(ops._rotary_backward, (plain[0], positions))
    print("opcheck passes")


def calls_in(graph):
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def test_graph():
    """Compiled programs call our operators, forward and backward."""
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def keep(graph, _):
        seen.append(calls_in(graph.graph))
        return graph

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)

    def model(x):
        q, k, v = x.unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        q = ops.rotary(q, torch.arange(x.shape[1]))
        return ops.attention(q, k, v, causal=True, dropout_p=0.1)

    function = torch.compile(
        model, fullgraph=True, backend=backend, dynamic=True
    )
    for T in (5, 9):
        x = torch.randn(2, T, 96, requires_grad=True)
        function(x).sum().backward()
    forward, backward = seen
    print("compiled:", len(forward), "and", len(backward), "operators")
    for names, op in (
        (forward, "_attention_forward"),
        (forward, "rotary"),
        (backward, "_attention_backward"),
        (backward, "_rotary_backward"),
    ):
        found = names.count(f"torch_attention.{op}.default")
        check(found == 1, f"{found} times {op} in {names}")
    theirs = [n for n in forward + backward
              if "dot_product" in n or "softmax" in n or "bmm" in n]
    check(not theirs, f"LibTorch's own: {theirs}")
    with torch.no_grad():
        function(torch.randn(2, 7, 96))
    check("torch_attention.attention.default" in seen[2], str(seen[2]))


def test_dropout():
    """The backward pass drops what the forward pass dropped."""
    q, k = tensors((1, 1, 64, 16), (1, 1, 64, 16), grad=False)
    v = torch.eye(64)[None, None].requires_grad_()

    def model(q, k, v):
        return ops.attention(q, k, v, dropout_p=0.5)

    for function in (model, compiled(model)):
        torch.manual_seed(3)
        weights = function(q, k, v)
        share = (weights == 0).float().mean().item()
        check(0.4 < share < 0.6, f"{share} of the weights are dropped")
        (grad,) = torch.autograd.grad(weights.sum(), v)
        # The gradient of the sum of all outputs is the sum of a key's weights.
        close(grad[0, 0, :, 0], weights.detach()[0, 0].sum(0), rtol=1e-4,
              atol=1e-5)
        torch.manual_seed(3)
        check(torch.equal(weights, function(q, k, v)), "another seed")
        check(not torch.equal(weights, function(q, k, v)), "the same seed")
    torch.manual_seed(3)
    dropped, weights = compiled(ops.attention_with_weights)(
        q.requires_grad_(), k, v, dropout_p=0.5
    )
    (grad,) = torch.autograd.grad(dropped.sum(), v)
    close(grad[0, 0, :, 0], weights.detach()[0, 0].sum(0), rtol=1e-4,
          atol=1e-5)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = torch.ops.torch_attention.attention(q, k, v, causal=True, window=3)
        return y.transpose(1, 2).flatten(2)


def test_export():
    model = Model().eval()
    x = torch.randn(2, 6, 32)
    expected = model(x)
    T = torch.export.Dim("T", min=2, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {1: T}})
    ours = calls_in(program.graph).count("torch_attention.attention.default")
    check(ours == 1, f"exported: {calls_in(program.graph)}")
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    close(torch.export.load(file).module()(x), expected)
    close(torch.export.load(io.BytesIO(file.getvalue())).module()(x[:, :4]),
          model(x[:, :4]))


def test_script():
    model = Model()
    x = torch.randn(2, 6, 32)
    for scripted in (torch.jit.trace(model, x), torch.jit.script(model)):
        file = io.BytesIO()
        torch.jit.save(scripted, file)
        file.seek(0)
        loaded = torch.jit.load(file)
        y = loaded(x)
        close(y, model(x))
        y.sum().backward()
        model.zero_grad()
        model(x).sum().backward()
        close(loaded.qkv.weight.grad, model.qkv.weight.grad)
        check("torch_attention::attention" in str(loaded.inlined_graph),
              "not ours in TorchScript")


def test_autocast():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    with torch.autocast("cpu", torch.bfloat16):
        y = ops.attention(q, k, v)
    check(y.dtype == torch.bfloat16, f"autocast gives {y.dtype}")
    y.float().sum().backward()
    check(q.grad.dtype == torch.float32, "gradients in another dtype")


def test_decode():
    """Decoding token by token gives the rows of causal attention."""
    q, k, v = tensors((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8), grad=False)
    expected = ops.attention(q, k, v, causal=True, enable_gqa=True)
    for function in (ops.decode, compiled(ops.decode)):
        caches = torch.zeros(2, 2, 9, 8), torch.zeros(2, 2, 9, 8)
        for t in range(6):
            rows = [x[:, :, t:t + 1] for x in (q, k, v)]
            y = function(*rows, *caches, torch.full((2,), t))
            close(y, expected[:, :, t:t + 1])
        close(caches[0][:, :, :6], k)
    version = caches[0]._version
    ops.decode(*[x[:, :, :1] for x in (q, k, v)], *caches,
               torch.zeros(2, dtype=torch.long))
    check(caches[0]._version > version, "autograd does not see the write")


def test_second_derivatives():
    inputs = tensors((1, 1, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2),
                     dtype=torch.float64)
    torch.autograd.gradcheck(ops.attention, inputs)
    torch.autograd.gradgradcheck(ops.attention, inputs)
    torch.autograd.gradcheck(
        lambda x: ops.rotary(x, torch.arange(3)), inputs[:1], atol=1e-3)


def test_errors():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    for message, call in {
        "expected query and key of the same head_dim": lambda: ops.attention(
            q, k[..., :4], v),
        "expected a bool mask": lambda: ops.attention(
            q, k, v, mask=torch.zeros(4, 4)),
        "expected a scaling of": lambda: ops.rotary(
            q, torch.arange(4), scaling="ntk"),
        "expected at most 2 tokens": lambda: ops.decode(
            q.detach(), k.detach(), v.detach(), torch.zeros(1, 2, 2, 8),
            torch.zeros(1, 2, 2, 8), torch.zeros(1, dtype=torch.long)),
    }.items():
        try:
            call()
        except RuntimeError as error:
            check(message in str(error), f"another message: {error}")
        else:
            sys.exit(f"no error: {message}")


def refused(call):
    try:
        call()
    except (RuntimeError, NotImplementedError):
        return True
    return False


def test_devices():
    """One tensor on the device meta with others on the CPU is refused."""
    q, k, v = tensors((2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8), grad=False)
    rules = {
        "key_lengths": torch.tensor([4, 3]),
        "query_offsets": torch.tensor([0, 0]),
        "mask": torch.zeros(4, 4, dtype=torch.bool),
        "bias": torch.randn(4, 4),
        "alibi_slopes": torch.rand(2),
        "sinks": torch.rand(2),
    }
    one = [x[:1] for x in (q, k, v)]
    starts = torch.tensor([0, 1, 4])
    row = [x[:, :, :1].clone() for x in (q, k, v)]
    cache = torch.zeros(2, 2, 6, 8)
    output, statistics, seed = ops._attention_forward(q, k, v, **rules)
    wanted = [True] * 6
    calls = [
        (op, (q, k, v), rules)
        for op in (ops.attention, ops.attention_with_weights,
                   ops._attention_forward)
    ]
    calls += [
        (ops.attention, one, {"cu_seqlens": starts, "cu_seqlens_k": starts}),
        (ops.scaled_dot_product_attention, (q, k, v), {"attn_mask": rules["bias"]}),
        (ops.scaled_dot_product_attention, (q, k, v),
         {"attn_mask": ~rules["mask"]}),
        (ops.rotary, (q, torch.arange(4)), {}),
        (ops._rotary_backward, (q, torch.arange(4)), {}),
        (ops.decode, (*row, cache, cache.clone(), torch.tensor([0, 2])),
         {"alibi_slopes": torch.rand(2), "sinks": torch.rand(2)}),
        (ops._attention_backward,
         (output, output, statistics, seed, wanted, q, k, v), rules),
        (ops._attention_with_weights_backward,
         (output, rules["bias"].expand(2, 2, 4, 4), output,
          rules["bias"].expand(2, 2, 4, 4), wanted, q, k, v), rules),
    ]
    mixed = 0
    for op, inputs, options in calls:
        op(*inputs, **options)
        names = list(range(len(inputs))) + list(options)
        for name in names:
            for grad in (False, True):
                given = list(inputs)
                named = dict(options)
                place = named if name in named else given
                if not isinstance(place[name], torch.Tensor):
                    continue
                place[name] = place[name].to("meta")
                if grad and op in (ops.attention, ops.attention_with_weights):
                    given[2] = given[2].clone().requires_grad_()
                check(refused(lambda: op(*given, **named)),
                      f"{op} took {name} on the device meta")
                mixed += 1
    print(mixed, "mixes of devices are refused")
    # With all tensors on meta only the sizes are computed.
    meta = [x.to("meta") for x in (q, k, v)]
    check(ops.attention(*meta).shape == q.shape, "meta")


def test_takes_no_fill_that_is_no_number():
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), grad=False)
    masks = [torch.zeros(3, 5, dtype=torch.bool)] * 2
    for fills, takes in (
        ([-1e9, -1e9], True),
        ([-1e9, math.nan], False),
        ([math.nan, -1e9], False),
    ):
        answer = ops._takes(q, k.mT, v, -1, 0.5, [], masks, fills, [])
        check(answer == takes, f"_takes with fills of {fills} is {answer}")


def test_decode_caches():
    """Caches that share memory with themselves, each other and the rows."""
    def rows():
        return tensors((2, 2, 2, 4), (2, 2, 2, 4), (2, 2, 2, 4), grad=False)

    lengths = torch.tensor([1, 3])
    cache = torch.randn(2, 2, 8, 4)
    other = torch.randn(2, 2, 8, 4)
    long = torch.zeros(300)
    overlapping = {
        "expanded": (cache[:1].expand(2, -1, -1, -1), other),
        "expanded heads": (other, cache[:, :1].expand(-1, 2, -1, -1)),
        "one as both": (cache, cache),
        "a view of it": (cache, cache[:, :]),
        "neighbours": (
            torch.zeros(100).as_strided((2, 2, 8, 4), (40, 16, 2, 1)), other),
        "shifted": tuple(
            long.as_strided((2, 2, 8, 4), (64, 32, 4, 1), begin)
            for begin in (0, 4)),
    }
    for name, caches in overlapping.items():
        before = [x.clone() for x in caches]
        check(refused(lambda: ops.decode(*rows(), *caches, lengths)),
              f"decode took caches that overlap: {name}")
        close([x.clone() for x in caches], before)
    # Caches in one tensor that do not overlap are taken.
    q, k, v = rows()
    expected = ops.decode(q, k, v, cache.clone(), other.clone(), lengths)
    halves = torch.cat([cache, other], -1)
    close(ops.decode(q, k, v, halves[..., :4], halves[..., 4:], lengths), expected)
    pair = torch.stack([cache, other], 1)
    close(ops.decode(q, k, v, pair[:, 0], pair[:, 1], lengths), expected)
    # Rows that are views of the caches are read before the caches are written.
    own = cache.clone()
    theirs = other.clone()
    q, k, v = own[:, :, 2:4], own[:, :, 1:3], own[:, :, 4:6]
    expected = ops.decode(q.clone(), k.clone(), v.clone(), cache.clone(),
                          other.clone(), lengths)
    close(ops.decode(q, k, v, own, theirs, lengths), expected)


def test_changed_in_place():
    """A residual that is added in place trains, as after matmul."""
    inputs = tensors((2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8))
    q, k, v, x = inputs

    def run(in_place, attend):
        y = attend(q, k, v)
        if in_place:
            y += x
        else:
            y = y + x
        return torch.autograd.grad(y.sin().sum(), inputs)

    for attend in (
        lambda *a: ops.attention(*a, causal=True),
        lambda *a: ops.attention_with_weights(*a, causal=True)[0],
        lambda *a: ops.scaled_dot_product_attention(*a, is_causal=True),
        torch.jit.script(Attend()),
        torch.jit.trace(Attend(), (q, k, v)),
        lambda *a: ops.rotary(a[0], torch.arange(4)) + a[1] * a[2],
    ):
        close(run(True, attend), run(False, attend))
    # A checkpoint drops what is saved, and makes it again.
    from torch.utils.checkpoint import checkpoint

    def block(q, k, v):
        y = ops.attention(q, k, v)
        y += x
        return y

    y = checkpoint(block, q, k, v, use_reentrant=False)
    close(torch.autograd.grad(y.sin().sum(), inputs),
          run(False, ops.attention))


class Attend(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.ops.torch_attention.attention(q, k, v, causal=True)


torch.manual_seed(1)
for test in [f for n, f in list(globals().items()) if n.startswith("test_")]:
    test()
    print("passed:", test.__name__)
print(f"loaded in {load_ms:.1f} ms")
check(load_ms < 50, "loading takes too long")
