#!/usr/bin/env python3
"""Measures models of transformers with three implementations of attention.

"eager", "sdpa" and "torch_attention" run interleaved in one process, in the same
model of random weights: a prompt, a step of decoding after it, and a training step
without the optimizer. Outputs and gradients are compared first. Needs the wheel
and transformers.

    python benchmarks/transformers_attention.py [--model llama] [--quick] [--device cuda]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import torch_attention  # noqa: F401: registers itself
from harness.agreement import difference
from harness.cuda import event_timer
from harness.machine import describe_machine
from harness.measure import Effort, interleave, ratio, spread, timer
from harness.report import ratio_text, time_text

IMPLEMENTATIONS = ("torch_attention", "sdpa", "eager")
EFFORT = Effort(20, 3, 41, 1e-2)
QUICK = Effort(2, 2, 3, 1e-2)
# The part of the largest element by which outputs may differ.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 6e-2}
CONFIGS = {
    # Two layers of the sizes of Llama 3.2 1B's.
    "llama": (
        "llama",
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_hidden_layers": 2,
        },
    ),
    # Two layers of the sizes of Gemma 3 1B's, of which one has the window.
    "gemma3": (
        "gemma3_text",
        {
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "num_hidden_layers": 2,
            "sliding_window": 512,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    # Two layers of the sizes of GPT-2's. Dropout is drawn from different streams.
    "gpt2": (
        "gpt2",
        {
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 2,
            "n_positions": 8192,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        },
    ),
}


@dataclass(frozen=True)
class Work:
    name: str
    # Runs the model by the implementation that it has now.
    run: Callable[[], list[Tensor]]


def describe_device(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    machine = describe_machine()
    return f"{machine['cpu']}, {machine['threads']} threads"


def make(name: str, device: str, dtype: torch.dtype) -> nn.Module:
    model_type, config = CONFIGS[name]
    transformers.logging.set_verbosity_error()
    made = transformers.CONFIG_MAPPING[model_type](vocab_size=1000, **config)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(made, dtype=dtype).eval().to(device)


def works(model: nn.Module, tokens: int) -> Iterator[Work]:
    device = model.device
    ids = torch.randint(0, 1000, (1, tokens), device=device)
    padding = torch.ones(4, tokens // 4, dtype=torch.long, device=device)
    for i, row in enumerate(padding):
        row[: i * tokens // 32] = 0
    rows = torch.randint(0, 1000, padding.shape, device=device)

    def prompt() -> list[Tensor]:
        with torch.no_grad():
            return [model(ids, use_cache=False).logits]

    def padded() -> list[Tensor]:
        with torch.no_grad():
            logits = model(rows, attention_mask=padding, use_cache=False).logits
        return [logits[padding.bool()]]

    caches: dict[str, Any] = {}

    def decode() -> list[Tensor]:
        cache = caches.get("cache")
        with torch.no_grad():
            if cache is None:
                cache = transformers.DynamicCache(config=model.config)
                cache.activate_past_recording()
                model(ids, past_key_values=cache)
                caches["cache"] = cache
            logits = model(ids[:, :1], past_key_values=cache).logits
        cache.crop(-1)
        return [logits]

    def train() -> list[Tensor]:
        model.train()
        logits = model(ids, use_cache=False).logits
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(logits.sin().sum(), parameters)
        model.eval()
        return list(gradients)

    yield Work(f"prompt of {tokens}", prompt)
    yield Work(f"4 prompts of {tokens // 4}, padded on the left", padded)
    yield Work(f"one token after {tokens}", decode)
    yield Work(f"training step, {tokens} tokens", train)


def by(model: nn.Module, implementation: str, run: Callable[[], Any]) -> Callable[[], Any]:
    def result() -> Any:
        # Quicker than set_attn_implementation, which reads sources.
        model.config._attn_implementation = implementation
        return run()

    return result


def measure(name: str, model: nn.Module, work: Work, effort: Effort) -> bool:
    """Prints the row of a case. Returns whether all ways agree."""
    runs = [by(model, implementation, work.run) for implementation in IMPLEMENTATIONS]
    ours, *others = [run() for run in runs]
    for implementation, theirs in zip(IMPLEMENTATIONS[1:], others):
        distance = difference(theirs, ours)
        if not distance <= ALLOWED[model.dtype]:
            print(f"| {name}, {work.name} | no figures: {implementation} differs by {distance:.1e} |")
            return False
    timed = event_timer if model.device.type == "cuda" else timer
    seconds = interleave([timed(run) for run in runs], effort)
    own = time_text(spread(seconds[0])["median"])
    ratios = " | ".join(ratio_text(ratio(theirs, seconds[0])) for theirs in seconds[1:])
    print(f"| {name}, {work.name} | {own} | {ratios} |", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=CONFIGS, action="append")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(
        f"{describe_device(options.device)}, PyTorch {torch.__version__}, "
        f"transformers {transformers.__version__}, {options.dtype}\n"
    )
    print("| work | ours | sdpa / ours | eager / ours |\n| --- | --- | --- | --- |")
    agree = True
    for name in options.model or CONFIGS:
        model = make(name, options.device, getattr(torch, options.dtype))
        for work in works(model, options.tokens):
            agree &= measure(name, model, work, QUICK if options.quick else EFFORT)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
