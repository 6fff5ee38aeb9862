"""LibTorch's attention by our kernels, in Python, switched on by the environment.

Usage: TORCH_ATTENTION_REPLACE_SDPA=1 replace_sdpa_in_python.py libtorch_attention.so
"""

import ctypes
import importlib.util
import os
import shutil
import sys
import tempfile
import warnings

import torch
import torch.nn.functional as F


class Calls(ctypes.Structure):
    _fields_ = [("ours", ctypes.c_int64), ("libtorch", ctypes.c_int64)]


path = sys.argv[1]
torch.ops.load_library(path)
sdpa_calls = ctypes.CDLL(path)._ZN15torch_attention10sdpa_callsEv
sdpa_calls.restype = Calls
switch = torch.ops.torch_attention


def ours(fn):
    """The result of `fn`, and how many calls in it were computed by our kernels."""
    before = sdpa_calls().ours
    result = fn()
    return result, sdpa_calls().ours - before


def by_libtorch(fn):
    switch.restore_sdpa()
    try:
        return fn()
    finally:
        switch.replace_sdpa()


def check(name, fn, expected_calls, by=by_libtorch):
    result, calls = ours(fn)
    torch.testing.assert_close(result, by(fn), rtol=1e-4, atol=1e-5)
    assert calls == expected_calls, f"{name}: {calls} calls, not {expected_calls}"


assert switch.is_sdpa_replaced()
torch.manual_seed(0)
query, key, value = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (5, 7, 7))


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def with_gradients(fn):
    output = fn(query, key, value)
    return [output, *torch.autograd.grad(output.sin().sum(), (query, key, value))]


check("eager", lambda: with_gradients(attend), 1)

# nn.MultiheadAttention in training, and a layer with dropout around it.
module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
x = torch.randn(2, 5, 16)
check("module", lambda: module(x, x, x, need_weights=False)[0], 1)

# In evaluation PyTorch computes whole layers by operators of their own.
encoder = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
    num_layers=2,
    enable_nested_tensor=False,
)
x = torch.randn(2, 5, 16)
causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
padding = torch.zeros(2, 5, dtype=torch.bool)
padding[1, 3:] = True
# Dropout 0.1, from a stream of our own: only the calls are compared.
assert ours(lambda: encoder(x))[1] == 2
encoder.eval()
with torch.no_grad():
    check("encoder", lambda: encoder(x), 2)
    check("causal encoder", lambda: encoder(x, mask=causal < 0), 2)
    check("padded encoder", lambda: encoder(x, src_key_padding_mask=padding), 2)
    check(
        "encoder with both",
        lambda: encoder(x, mask=causal < 0, src_key_padding_mask=padding),
        2,
    )
    scripted = torch.jit.script(encoder)
    check("scripted encoder", lambda: scripted(x), 2)
    module.eval()
    check("weights", lambda: module(x, x, x)[1], 0)

# A compiled program keeps LibTorch's operators, which our kernels compute.
compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
with_gradients(compiled)
check("compiled", lambda: with_gradients(compiled), 2)

# Inductor keeps them, too; it needs a C++ compiler.
if shutil.which(os.environ.get("CXX", "g++")):
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        compiled = torch.compile(attend, fullgraph=True)
        with_gradients(compiled)
        check("Inductor", lambda: with_gradients(compiled), 2)

# Traces and exported programs have LibTorch's operator, not ours.
trace = torch.jit.trace(attend, (query, key, value))
assert "aten::scaled_dot_product_attention" in str(trace.graph)
check("traced", lambda: with_gradients(trace), 1)


class Module(torch.nn.Module):
    def forward(self, q, k, v):
        return attend(q, k, v)


detached = tuple(x.detach() for x in (query, key, value))
program = torch.export.export(Module(), detached)
targets = {str(node.target) for node in program.graph.nodes}
assert "aten.scaled_dot_product_attention.default" in targets, targets
check("exported", lambda: program.module()(*detached), 1)

# Wrapped tensors.
def gradient(q):
    return torch.func.grad(lambda q: attend(q, key, value).sum())(q)


check("torch.func.grad", lambda: gradient(query.detach()), 2)
with warnings.catch_warnings():
    # LibTorch has no batching rule of its own.
    warnings.simplefilter("ignore")
    check(
        "torch.func.vmap",
        lambda: torch.func.vmap(attend)(*(x[:, None] for x in detached)),
        ours(lambda: torch.func.vmap(attend)(*(x[:, None] for x in detached)))[1],
    )
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
    check(
        "forward derivatives",
        lambda: torch.func.jvp(
            lambda q: attend(q, *detached[1:]), detached[:1], detached[:1]
        ),
        0,
    )

# Checkpoints recompute with the same dropout.
def dropping(q):
    return F.scaled_dot_product_attention(q, key, value, dropout_p=0.5)


def gradient_of_dropping(fn):
    torch.manual_seed(1)
    return torch.autograd.grad(fn(query).sum(), query)[0]


torch.testing.assert_close(
    gradient_of_dropping(
        lambda q: torch.utils.checkpoint.checkpoint(dropping, q, use_reentrant=False)
    ),
    gradient_of_dropping(dropping),
)

# Models of Hugging Face, whose layers attend by LibTorch's function.
if importlib.util.find_spec("transformers"):
    import transformers

    sizes = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "attn_implementation": "sdpa",
    }
    ids = torch.randint(0, 32, (2, 7))
    visible = torch.ones_like(ids)
    visible[1, 4:] = 0
    bert = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    llama = transformers.LlamaModel(
        transformers.LlamaConfig(num_key_value_heads=2, **sizes)
    ).eval()
    for model in (bert, llama):
        for mask in (None, visible):
            check(
                type(model).__name__,
                lambda: model(ids, attention_mask=mask).last_hidden_state,
                2,
            )

meta = torch.empty(2, 3, 5, 8, device="meta")
assert attend(meta, meta, meta).shape == (2, 3, 5, 8)
print("passed")
