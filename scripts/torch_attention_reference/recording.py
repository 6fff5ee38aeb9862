"""Sample values of a module: what NAME.expected.pt holds.

It is one plain dict that C++ reads with torch::pickle_load:

  config      class and constructor keywords of the module
  training    mode of the module
  seed        seed of the random stream for the training steps
  draws       a sample of the random stream, see random_draws()
  input       x
  cotangent   g, of the output's shape
  output      module(x)
  gradients   of sum(module(x) * g): "input" and every parameter
  adamw       lr, beta1, beta2, eps, weight_decay, steps
  trained     every parameter after these steps
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The key bias has gradient zero in exact arithmetic: it shifts all scores of
# a row alike. A small eps would turn its rounding noise into whole steps, so
# eps is large on purpose.
ADAMW = {
    "lr": 1e-2,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-3,
    "weight_decay": 0.01,
    "steps": 3,
}
# The largest size of x that is trained with this lr.
LARGEST = 64

# dtype -> (rtol, atol), as torch.testing has them.
TOLERANCES = {
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.bfloat16: (1.6e-2, 1e-3),
}

# C++ reads a pickled int of four bytes or of eight, nothing between: seeds
# stay below this so that they take four.
SEED_LIMIT = 2**31 - 1


def draw(
    shape: Iterable[int], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Draws normal values in double, so that every CPU rounds them alike."""
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return x.to(dtype)


def plain(tensor: Tensor) -> Tensor:
    """Returns a contiguous copy outside of autograd."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def random_draws() -> Tensor:
    """Returns what dropout keeps of 32 elements.

    Releases, and builds with and without MKL, draw differently from one seed.
    Those that draw another sample get other results under dropout.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        return F.dropout(torch.ones(32), 0.5, training=True).bool()


def record(
    module: nn.Module,
    config: dict[str, Any],
    x: Tensor,
    generator: torch.Generator,
    seed: int,
) -> dict[str, Any]:
    """Returns the sample values; leaves the module trained."""
    with torch.no_grad():
        g = draw(module(x).shape, x.dtype, generator)
    return {
        "config": config,
        "training": module.training,
        "seed": seed,
        "draws": random_draws(),
        "input": x,
        "cotangent": g,
        **train(module, x, g, seed),
    }


def train(module: nn.Module, x: Tensor, g: Tensor, seed: int) -> dict[str, Any]:
    """Records three AdamW steps on sum(module(x) * g).

    A step moves each weight by about lr in the direction of x, and so the sums
    over x's size by lr times that. Beyond some sizes lr falls with it: else the
    second step would be of another module, whose gradients take up the rounding
    of the first, and rightly computed weights could fail the comparison.
    """
    adamw = dict(ADAMW, lr=ADAMW["lr"] * min(1.0, LARGEST / x.size(-1)))
    optimizer = torch.optim.AdamW(
        module.parameters(),
        lr=adamw["lr"],
        betas=(ADAMW["beta1"], ADAMW["beta2"]),
        eps=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"],
        foreach=False,
    )
    result: dict[str, Any] = {}
    torch.manual_seed(seed)
    for step in range(int(ADAMW["steps"])):
        optimizer.zero_grad()
        leaf = x.detach().clone().requires_grad_()
        out = module(leaf)
        (out * g).sum().backward()
        if step == 0:
            gradients = {"input": plain(leaf.grad)}
            for key, parameter in module.named_parameters():
                gradients[key] = plain(parameter.grad)
            result["output"] = plain(out)
            result["gradients"] = gradients
        optimizer.step()
    result["adamw"] = adamw
    result["trained"] = {k: plain(p) for k, p in module.named_parameters()}
    return result
