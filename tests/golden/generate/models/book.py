"""The GPT-2 of Raschka, "Build a Large Language Model (From Scratch)", chapter 4.

The modules are made in the book's order and under its names: the seed gives the
weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_attention_reference import safetensors_file
from torch_attention_reference.classes import MultiHeadAttention

SEED = 123


@dataclass(frozen=True)
class Config:
    vocab_size: int = 64
    context_length: int = 16
    emb_dim: int = 24
    n_heads: int = 4
    n_layers: int = 2
    drop_rate: float = 0.1
    qkv_bias: bool = False


class LayerNorm(nn.Module):
    def __init__(self, emb_dim: int) -> None:
        super().__init__()
        self.eps = 1e-5
        self.scale = nn.Parameter(torch.ones(emb_dim))
        self.shift = nn.Parameter(torch.zeros(emb_dim))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
        return self.scale * (x - mean) / torch.sqrt(variance + self.eps) + self.shift


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(config.emb_dim, 4 * config.emb_dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.emb_dim, config.emb_dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class TransformerBlock(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.att = MultiHeadAttention(
            config.emb_dim,
            config.emb_dim,
            config.context_length,
            config.drop_rate,
            config.n_heads,
            config.qkv_bias,
        )
        self.ff = FeedForward(config)
        self.norm1 = LayerNorm(config.emb_dim)
        self.norm2 = LayerNorm(config.emb_dim)
        self.drop_shortcut = nn.Dropout(config.drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_shortcut(self.att(self.norm1(x)))
        return x + self.drop_shortcut(self.ff(self.norm2(x)))


class GPTModel(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(config.vocab_size, config.emb_dim)
        self.pos_emb = nn.Embedding(config.context_length, config.emb_dim)
        self.drop_emb = nn.Dropout(config.drop_rate)
        self.trf_blocks = nn.Sequential(
            *(TransformerBlock(config) for _ in range(config.n_layers))
        )
        self.final_norm = LayerNorm(config.emb_dim)
        self.out_head = nn.Linear(config.emb_dim, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1])
        x = self.drop_emb(self.tok_emb(ids) + self.pos_emb(positions))
        return self.out_head(self.final_norm(self.trf_blocks(x)))


@torch.no_grad()
def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    model = GPTModel(Config()).eval()
    ids = torch.randint(Config.vocab_size, (2, Config.context_length))
    expected = {"ids": ids, "logits": model(ids)}
    safetensors_file.write(folder / "expected.safetensors", expected)
