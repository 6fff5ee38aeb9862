"""The first steps of training, as `gpt train` does them."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_attention_reference import safetensors_file

from .book import Config, GPTModel

STEPS = 50
BATCH = 4
ACCUMULATE = 2
LR = 1e-3
WARMUP = 5
CLIP = 1.0
DECAY = 0.1
SEED = 1
# The share of the bytes that is kept for validation.
HELD_OUT = 0.1
CONFIG = Config(
    vocab_size=256,
    context_length=32,
    emb_dim=32,
    n_heads=4,
    n_layers=2,
    drop_rate=0.0,
)
TEXT = Path(__file__).resolve().parents[4] / "LICENSE"


def sequences(text: Tensor, length: int, seed: int):
    """Yields windows of length + 1 of the text, in a new order in each epoch."""
    count = (len(text) - length) // length
    epoch = 0
    while True:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(count, generator=generator)
        offset = torch.randint(length, (1,), generator=generator).item()
        for window in order.tolist():
            start = offset + window * length
            yield text[start : start + length + 1]
        epoch += 1


def learning_rate(step: int) -> float:
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    share = (step - WARMUP) / (STEPS - WARMUP)
    return LR * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


def losses() -> list[float]:
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8)
    text = text[: len(text) - int(len(text) * HELD_OUT)].long()
    torch.manual_seed(SEED)
    model = GPTModel(CONFIG)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() > 1]},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0},
        ],
        betas=(0.9, 0.95),
        weight_decay=DECAY,
    )
    windows = sequences(text, CONFIG.context_length, SEED)
    result = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        total = 0.0
        for _ in range(ACCUMULATE):
            batch = torch.stack([next(windows) for _ in range(BATCH)])
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), batch[:, 1:].flatten()
            )
            (loss / ACCUMULATE).backward()
            total += loss.item() / ACCUMULATE
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        result.append(total)
    return result


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    safetensors_file.write(
        folder / "expected.safetensors", {"losses": torch.tensor(losses())}
    )
