"""Small decoders and encoders of transformers with random weights, and comparing two
implementations of attention in one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCABULARY = 40
WINDOW = 5
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}


@dataclass(frozen=True)
class Kind:
    """A model type, and the fields in which its small model differs from SIZES."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    # It is trained with sequences packed by position_ids.
    packs: bool = True

    def make(self, generator_seed: int, dtype: torch.dtype) -> nn.Module:
        config = transformers.CONFIG_MAPPING[self.model_type](**{**SIZES, **self.config})
        config._attn_implementation = "eager"
        # The others have no double.
        config._experts_implementation = "eager"
        torch.manual_seed(generator_seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        for parameter in model.parameters():
            # Norms, biases and sinks, which begin as ones and zeros, too.
            nn.init.normal_(parameter, std=0.3, mean=0.5 if parameter.dim() == 1 else 0.0)
        return model


HYBRID = ["sliding_attention", "full_attention"]
DECODERS = (
    Kind("llama"),
    Kind("qwen3"),
    Kind("mistral", {"sliding_window": WINDOW}),
    Kind("gemma2", {"sliding_window": WINDOW, "attn_logit_softcapping": 3.0}),
    Kind("gemma3_text", {"sliding_window": WINDOW, "layer_types": HYBRID}),
    Kind(
        "gpt_oss",
        {"sliding_window": WINDOW, "layer_types": HYBRID, "rope_parameters": None, **EXPERTS},
    ),
    # Keeps no position_ids of packed sequences apart.
    Kind("gpt2", {"n_inner": 48}, packs=False),
    Kind("gpt_neox", {"num_key_value_heads": None}),
    Kind("starcoder2", {"sliding_window": WINDOW}),
    Kind("cohere2", {"sliding_window": WINDOW, "layer_types": HYBRID}),
    Kind("phi3", {"sliding_window": WINDOW}),
    Kind("granite", {"attention_multiplier": 0.2}),
)


@dataclass
class Comparison:
    """Runs a model by two implementations of attention."""

    model: nn.Module

    def by(self, implementation: str, run: Callable[[nn.Module], Any]) -> Any:
        self.model.set_attn_implementation(implementation)
        return run(self.model)

    def both(self, run: Callable[[nn.Module], Any]) -> tuple[Any, Any]:
        """Returns what our attention computes, and what eager computes."""
        return self.by("torch_attention", run), self.by("eager", run)


def assert_close(name: str, ours: Tensor, eager: Tensor, rtol: float) -> float:
    """Compares relative to the largest element, and returns the difference."""
    scale = eager.abs().max().item() or 1.0
    worst = (ours - eager).abs().max().item() / scale
    if not worst <= rtol:  # also for NaN
        raise AssertionError(f"{name}: expected a difference of {rtol} at most, but got {worst}")
    return worst
