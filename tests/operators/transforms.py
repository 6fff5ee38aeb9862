"""Our operators under torch.func and forward_ad, compared with LibTorch's own.

    python transforms.py LIBRARY

LIBRARY is libtorch_attention.so. All in float64, against attention written by
matmul and softmax.
"""

import math
import os
import sys
import warnings

import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)

torch.ops.load_library(sys.argv[1])
torch.set_default_dtype(torch.float64)
# vmap computes one slice after the other, and says so.
warnings.filterwarnings("ignore", message=".*performance drop.*")
ops = torch.ops.torch_attention


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-9)


def check(condition, message):
    if not condition:
        sys.exit(message)


def hidden_by_rules(T, S, options):
    """True hides: (T, S), or (B, 1, T, S) with lengths or offsets."""
    keys = torch.arange(S)
    offsets = options.get("query_offsets")
    if offsets is None:
        queries = torch.arange(S - T, S)[:, None]
    else:
        queries = (offsets[:, None] + torch.arange(T))[:, None, :, None]
    hidden = torch.zeros(T, S, dtype=torch.bool)
    if options.get("causal"):
        hidden = hidden | (keys > queries)
    if options.get("window") is not None:
        hidden = hidden | (keys <= queries - options["window"])
    if options.get("window_after") is not None:
        hidden = hidden | (keys > queries + options["window_after"])
    if options.get("chunk") is not None:
        hidden = hidden | (keys // options["chunk"] != queries // options["chunk"])
    if options.get("key_lengths") is not None:
        hidden = hidden | (keys >= options["key_lengths"][:, None, None, None])
    return hidden, queries - keys


def definition(q, k, v, **options):
    """Output and weights by LibTorch's operators."""
    if options.get("enable_gqa"):
        k, v = [x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v)]
    scale = options.get("scale") or 1 / math.sqrt(q.shape[-1])
    scores = q @ k.transpose(-2, -1) * scale
    if options.get("softcap"):
        scores = torch.tanh(scores / options["softcap"]) * options["softcap"]
    hidden, distance = hidden_by_rules(q.shape[-2], k.shape[-2], options)
    if options.get("bias") is not None:
        scores = scores + options["bias"]
    if options.get("alibi_slopes") is not None:
        slopes = options["alibi_slopes"][:, None, None]
        scores = scores - slopes * distance.abs()
    if options.get("mask") is not None:
        hidden = hidden | options["mask"]
    scores = scores.masked_fill(hidden, -math.inf)
    if options.get("sinks") is not None:
        column = options["sinks"][:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[-2]]
    return weights @ v, weights


def packed(q, k, v, **options):
    """Attention of packed sequences, one sequence after the other."""
    starts = options.pop("cu_seqlens").tolist()
    outputs = [
        definition(*[x[:, :, a:b] for x in (q, k, v)], **options)[0]
        for a, b in zip(starts, starts[1:])
    ]
    return torch.cat(outputs, 2)


B, H, T, S, D = 2, 4, 3, 5, 2
mask = torch.zeros(B, 1, T, S, dtype=torch.bool)
mask[0, :, :, 1] = True
mask[1, :, 0, 3:] = True
bias = torch.randn(H, T, S)
RULES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 2},
    "both sides": {"window": 2, "window_after": 1},
    "chunk": {"causal": True, "chunk": 3},
    "lengths": {"key_lengths": torch.tensor([4, 5])},
    "offsets": {"query_offsets": torch.tensor([0, 2]), "causal": True},
    "mask": {"mask": mask},
    "bias": {"bias": bias, "scale": 0.7},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi_slopes": torch.rand(H)},
    "sinks": {"sinks": torch.randn(H)},
    "all": {
        "mask": mask, "bias": bias, "softcap": 2.0, "causal": True,
        "alibi_slopes": torch.rand(H), "sinks": torch.randn(H),
    },
}
FLOATS = ("bias", "alibi_slopes", "sinks")


def inputs(kv_heads=H):
    return tuple(
        torch.randn(B, h, n, D) for h, n in ((H, T), (kv_heads, S), (kv_heads, S))
    )


def calls():
    """Names, functions of all differentiable tensors by ours and by definition,
    and the tensors."""
    for name, options in RULES.items():
        floats = [n for n in options if n in FLOATS]
        fixed = {n: x for n, x in options.items() if n not in FLOATS}

        def ours(q, k, v, *rest, fixed=fixed, floats=floats):
            return ops.attention(q, k, v, **fixed, **dict(zip(floats, rest)))

        def weights(q, k, v, *rest, fixed=fixed, floats=floats):
            both = ops.attention_with_weights(
                q, k, v, **fixed, **dict(zip(floats, rest)))
            return torch.cat(both, -1)

        def theirs(q, k, v, *rest, fixed=fixed, floats=floats):
            return definition(q, k, v, **fixed, **dict(zip(floats, rest)))[0]

        def their_weights(q, k, v, *rest, fixed=fixed, floats=floats):
            both = definition(q, k, v, **fixed, **dict(zip(floats, rest)))
            return torch.cat(both, -1)

        tensors = inputs() + tuple(options[n] for n in floats)
        yield name, ours, theirs, tensors
        yield name + ", with weights", weights, their_weights, tensors
    yield (
        "shared heads",
        lambda *x: ops.attention(*x, enable_gqa=True, causal=True),
        lambda *x: definition(*x, enable_gqa=True, causal=True)[0],
        inputs(kv_heads=2),
    )
    yield (
        "scaled_dot_product_attention",
        lambda *x: ops.scaled_dot_product_attention(*x, attn_mask=bias),
        lambda *x: definition(*x, bias=bias)[0],
        inputs(),
    )
    starts = torch.tensor([0, 2, 2, 5])
    yield (
        "packed",
        lambda *x: ops.attention(*x, cu_seqlens=starts, causal=True),
        lambda *x: packed(*x, cu_seqlens=starts, causal=True),
        tuple(torch.randn(1, 2, 5, D) for _ in range(3)),
    )
    positions = torch.tensor([1, 0, 4])
    for options in ({}, {"interleaved": True, "dim": 2}):
        # The tables are float32; rotary embedding is linear in x.
        table = torch.eye(4)
        rows = ops.rotary(
            table[:, None].expand(4, 3, 4), positions, **options)
        yield (
            f"rotary {options}",
            lambda x, o=options: ops.rotary(x, positions, **o),
            lambda x, r=rows: torch.einsum("btd,dte->bte", x, r),
            (torch.randn(B, 3, 4),),
        )


def scalar(function):
    return lambda *x: function(*x).sin().sum()


def test_derivatives():
    for name, ours, theirs, x in calls():
        tangents = tuple(torch.randn_like(t) for t in x)
        close(jvp(ours, x, tangents), jvp(theirs, x, tangents))
        output = ours(*x)
        if name == "packed":
            # A trace cannot depend on where sequences begin.
            try:
                linearize(ours, *x)
            except RuntimeError:
                pass
            else:
                sys.exit("expected linearize to refuse cu_seqlens")
        else:
            output, push = linearize(ours, *x)
            close(output, theirs(*x))
            close(push(*tangents), jvp(theirs, x, tangents)[1])
        # The gradient of one input alone.
        for i in range(len(x)):
            def one(function, i=i):
                return lambda t: function(*x[:i], t, *x[i + 1:])

            expected = jacrev(one(theirs))(x[i])
            close(jacfwd(one(ours))(x[i]), expected)
            close(jacrev(one(ours))(x[i]), expected)
        every = tuple(range(len(x)))
        close(grad(scalar(ours), every)(*x), grad(scalar(theirs), every)(*x))
        cotangent = torch.randn_like(output)
        close(vjp(ours, *x)[1](cotangent), vjp(theirs, *x)[1](cotangent))
        print("the derivatives of torch.func:", name)


def test_second_derivatives():
    for name, ours, theirs, x in calls():
        if name.endswith(", with weights") and not os.environ.get("TORCH_ATTENTION_NIGHTLY"):
            continue
        for i in range(min(len(x), 2)):
            def one(function, i=i):
                return lambda t: scalar(function)(*x[:i], t, *x[i + 1:])

            expected = hessian(one(theirs))(x[i])
            close(hessian(one(ours))(x[i]), expected)
            close(jacrev(jacrev(one(ours)))(x[i]), expected)
            close(jacfwd(jacfwd(one(ours)))(x[i]), expected)
            close(jacrev(jacfwd(one(ours)))(x[i]), expected)
            direction = torch.randn_like(x[i])
            close(
                grad(lambda t: jvp(one(ours), (t,), (direction,))[1])(x[i]),
                grad(lambda t: jvp(one(theirs), (t,), (direction,))[1])(x[i]),
            )
        print("second derivatives:", name)


def test_vmap():
    for name, ours, theirs, x in calls():
        many = tuple(torch.randn(3, *t.shape) for t in x)
        tangents = tuple(torch.randn_like(t) for t in many)
        close(vmap(ours)(*many), torch.stack([theirs(*t) for t in zip(*many)]))
        # Only the first input is batched.
        dims = (0,) + (None,) * (len(x) - 1)
        close(
            vmap(ours, dims)(many[0], *x[1:]),
            torch.stack([theirs(t, *x[1:]) for t in many[0]]),
        )

        def push(function):
            return lambda *t: jvp(function, t[: len(x)], t[len(x):])

        close(vmap(push(ours))(*many, *tangents), vmap(push(theirs))(*many, *tangents))
        close(
            vmap(grad(scalar(ours)))(*many), vmap(grad(scalar(theirs)))(*many))
        close(
            grad(lambda *t: vmap(scalar(ours))(*t).sum())(*many),
            grad(lambda *t: vmap(scalar(theirs))(*t).sum())(*many),
        )
        close(
            jvp(vmap(ours), many, tangents), jvp(vmap(theirs), many, tangents))
        # Autograd records the call of vmap.
        leaves = [t.clone().requires_grad_() for t in many]
        vmap(scalar(ours))(*leaves).sum().backward()
        close(leaves[0].grad, vmap(grad(scalar(theirs)))(*many))
        print("vmap:", name)


def test_masks_that_differ():
    """vmap over masks and biases of equal queries and keys."""
    q, k, v = (torch.randn(2, 3, 2) for _ in range(3))
    masks = torch.rand(4, 3, 3) > 0.6
    masks[..., 0] = False
    biases = torch.randn(4, 3, 3)
    tangent = torch.randn_like(q)
    for name, x in (("mask", masks), ("bias", biases)):
        def push(function):
            return lambda m: jvp(
                lambda t: function(t, k, v, **{name: m}), (q,), (tangent,))

        close(
            vmap(push(ops.attention))(x),
            vmap(push(lambda *a, **o: definition(*a, **o)[0]))(x),
        )


def test_forward_ad():
    for name, ours, theirs, x in calls():
        with fwAD.dual_level():
            duals = [fwAD.make_dual(t, torch.ones_like(t)) for t in x]
            close(fwAD.unpack_dual(ours(*duals)).tangent,
                  fwAD.unpack_dual(theirs(*duals)).tangent)


def test_dropout():
    """vmap's `randomness` is kept: the weights dropped differ or are the same."""
    q, k, v = (torch.randn(4, 1, 2, 8, 4) for _ in range(3))
    q, k, v = (x[:1].expand(4, -1, -1, -1, -1) for x in (q, k, v))

    def drop(q, k, v):
        return ops.attention(q, k, v, dropout_p=0.5)

    try:
        vmap(drop)(q, k, v)
    except RuntimeError as error:
        check("randomness" in str(error), f"another message: {error}")
    else:
        sys.exit("expected vmap to ask for its randomness")
    same = vmap(drop, randomness="same")(q, k, v)
    close(same[0], same[1])
    different = vmap(drop, randomness="different")(q, k, v)
    check(not torch.allclose(different[0], different[1]), "the same are dropped")
    direction = torch.randn_like(q[0])
    torch.manual_seed(3)
    _, tangent = jvp(lambda t: drop(q[0], k[0], t), (v[0],), (direction,))
    torch.manual_seed(3)
    # The output is linear in the value.
    close(tangent, jvp(lambda t: drop(q[0], k[0], t), (direction,), (direction,))[0])


def test_decode_refuses():
    rows = [torch.randn(1, 2, 1, 4) for _ in range(3)]
    caches = [torch.zeros(1, 2, 5, 4) for _ in range(2)]
    try:
        jvp(lambda q: ops.decode(q, *rows[1:], *caches, torch.tensor([2])),
            (rows[0],), (rows[0],))
    except RuntimeError as error:
        check("decode" in str(error), f"another message: {error}")
    else:
        sys.exit("expected decode to refuse forward derivatives")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        q, k = (ops.rotary(t, torch.arange(x.shape[1])) for t in (q, k))
        return ops.attention(q, k, v, causal=True)


def test_gradients_of_each_sample():
    model = Model()
    weights = {n: p.detach() for n, p in model.named_parameters()}
    x = torch.randn(3, 5, 8)

    def loss(weights, x):
        return functional_call(model, weights, (x[None],)).pow(2).sum()

    each = vmap(grad(loss), (None, 0))(weights, x)
    for i in range(3):
        close({n: g[i] for n, g in each.items()}, grad(loss)(weights, x[i]))
    model(x).pow(2).sum().backward()
    close(each["qkv.weight"].sum(0), model.qkv.weight.grad)


def test_compiled():
    q, k, v = inputs()
    tangent = torch.randn_like(q)

    def push(t):
        return jvp(lambda a: ops.attention(a, k, v, causal=True), (t,), (tangent,))

    torch.compiler.reset()
    close(torch.compile(push, backend="aot_eager")(q), push(q))


def test_replaced_sdpa():
    """Replaced attention gives LibTorch's numbers, or its error."""
    def found(run):
        try:
            return run()
        except (RuntimeError, NotImplementedError) as error:
            return type(error)

    q, k, v = inputs()
    tangents = tuple(torch.randn_like(t) for t in (q, k, v))
    for options in ({}, {"is_causal": True}, {"attn_mask": bias},
                    {"attn_mask": mask.logical_not()}):
        def attend(*x):
            return F.scaled_dot_product_attention(*x, **options)

        for run in (
            lambda: jvp(attend, (q, k, v), tangents),
            lambda: grad(scalar(attend))(q, k, v),
            lambda: jacfwd(attend)(q, k, v),
            lambda: hessian(lambda t: scalar(attend)(t, k, v))(q),
            lambda: vmap(attend)(q[None], k[None], v[None]),
            lambda: vmap(grad(scalar(attend)))(q[None], k[None], v[None]),
            lambda: jvp(lambda t: attend(q, k, t), (v,), (v,)),
        ):
            expected = found(run)
            ops.replace_sdpa()
            actual = found(run)
            ops.restore_sdpa()
            if isinstance(expected, type):
                check(actual == expected, f"{actual}, not {expected}")
            else:
                close(actual, expected)


torch.manual_seed(1)
for test in [f for n, f in list(globals().items()) if n.startswith("test_")]:
    test()
    print("passed:", test.__name__)
