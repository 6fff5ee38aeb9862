"""Megatron's split of attention by torch.distributed, in one group with C++.

    launch 4 python with_python.py path/to/torch_attention_with_python

Processes with even numbers are Python: each computes with its part of the heads,
and the first one saves weights and inputs. The others become the C++ program. All
compare with the whole.
"""

import os
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist

HEADS, KV_HEADS, HEAD_DIM, D_IN, D_OUT = 8, 4, 8, 8, 64


class Enter(torch.autograd.Function):
    """Identity; the sum of gradients."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Leave(torch.autograd.Function):
    """The sum; identity of gradients."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def attention(x, weights, heads, kv_heads):
    batch, tokens, _ = x.shape

    def project(name, count):
        y = torch.nn.functional.linear(
            x, weights[f"{name}.weight"], weights[f"{name}.bias"]
        )
        return y.view(batch, tokens, count, HEAD_DIM).transpose(1, 2)

    q = project("W_query", heads)
    k = project("W_key", kv_heads).repeat_interleave(heads // kv_heads, 1)
    v = project("W_value", kv_heads).repeat_interleave(heads // kv_heads, 1)
    scores = q @ k.transpose(2, 3) / HEAD_DIM**0.5
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    context = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    context = context.transpose(1, 2).flatten(2)
    return context @ weights["out_proj.weight"].T


def part_of(weights, rank, size):
    part = {}
    for name, tensor in weights.items():
        dim = 1 if name == "out_proj.weight" else 0
        whole = name == "out_proj.bias"
        part[name] = tensor if whole else tensor.chunk(size, dim)[rank]
    return part


def with_gradients(weights):
    return {k: v.detach().clone().requires_grad_() for k, v in weights.items()}


def difference(rank, processes, weights, x):
    """Computes the own part and the whole, and returns how far they differ."""
    parts = with_gradients(part_of(weights, rank, processes))
    wholes = with_gradients(weights)
    own_x = x.clone().requires_grad_()
    whole_x = x.clone().requires_grad_()
    own_heads = HEADS // processes, KV_HEADS // processes
    partial = attention(Enter.apply(own_x), parts, *own_heads)
    output = Leave.apply(partial) + parts["out_proj.bias"]
    expected = attention(whole_x, wholes, HEADS, KV_HEADS) + wholes["out_proj.bias"]
    # So that gradients, too, are about 1.
    output.square().mean(-1).sum().backward()
    expected.square().mean(-1).sum().backward()
    expected_grads = part_of({k: v.grad for k, v in wholes.items()}, rank, processes)
    pairs = [(output, expected), (own_x.grad, whole_x.grad)]
    pairs += [(parts[k].grad, expected_grads[k]) for k in parts]
    # Relative to the largest number. The gradient of the keys' bias is 0.
    return max(
        ((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs
    )


def main():
    program = sys.argv[1]
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = os.path.join(
        tempfile.gettempdir(), f"with_python_{os.environ['MASTER_PORT']}"
    )
    files = [f"{folder}.weights.pt", f"{folder}.inputs.pt"]
    if rank % 2 == 1:
        os.execv(program, [program, *files])
    torch.manual_seed(1)
    rows = {
        "W_query": (HEADS * HEAD_DIM, D_IN),
        "W_key": (KV_HEADS * HEAD_DIM, D_IN),
        "W_value": (KV_HEADS * HEAD_DIM, D_IN),
        "out_proj": (D_OUT, HEADS * HEAD_DIM),
    }
    weights = {}
    for name, (out, size) in rows.items():
        # So that all numbers are about 1.
        weight = torch.randn(out, size, dtype=torch.double) / size**0.5
        weights[f"{name}.weight"] = weight
        weights[f"{name}.bias"] = torch.randn(out, dtype=torch.double)
    x = torch.randn(2, 6, D_IN, dtype=torch.double)
    same = True
    try:
        if rank == 0:
            torch.save(weights, files[0])
            torch.save({"x": x}, files[1])
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        dist.barrier()
        for dtype, bound in ((torch.double, 1e-12), (torch.float, 1e-6)):
            in_dtype = {name: tensor.to(dtype) for name, tensor in weights.items()}
            worst = difference(rank, processes, in_dtype, x.to(dtype))
            print(f"Python differs from one process by {worst} in {dtype}")
            same = same and worst < bound
        dist.barrier()
        dist.destroy_process_group()
    finally:
        for file in files:
            if rank == 0 and os.path.exists(file):
                os.remove(file)
    sys.exit(not same)


main()
