"""Decoders whose configurations are drawn from a grammar, by fixed seeds."""

from __future__ import annotations

import random
from typing import Any

from .decoders import VOCABULARY, Decoder

TYPES = ("gemma", "gemma2", "gemma3_text", "gpt2", "llama", "mistral", "qwen2", "qwen3")


class Grammar:
    """Draws configurations."""

    def __init__(self, model_type: str, seed: int) -> None:
        self.model_type = model_type
        self.random = random.Random(f"{model_type} {seed}")

    def maybe(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def some(self, fields: dict[str, Any]) -> dict[str, Any]:
        """About half of the fields."""
        return {name: value for name, value in fields.items() if self.maybe(0.5)}

    def rotary(self) -> dict[str, Any]:
        kind = self.pick("default", "linear", "dynamic", "yarn", "llama3")
        fields = {"rope_type": kind, "rope_theta": self.pick(1e3, 1e4, 5e5)}
        if kind != "default":
            fields["factor"] = self.pick(2.0, 4.0)
        if kind in ("yarn", "llama3"):
            fields["original_max_position_embeddings"] = self.pick(16, 32)
        if kind == "llama3":
            fields |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        if kind == "yarn":
            fields |= self.some({"beta_fast": 16.0, "truncate": False})
        return fields

    def gpt2(self) -> dict[str, Any]:
        heads = self.pick(2, 4)
        return {
            "n_embd": heads * self.pick(4, 6),
            "n_head": heads,
            "n_layer": self.pick(1, 2),
            "n_positions": 96,
        } | self.some(
            {
                "n_inner": 20,
                "activation_function": self.pick("gelu", "relu", "silu"),
                "scale_attn_weights": False,
                "scale_attn_by_inverse_layer_idx": True,
                "reorder_and_upcast_attn": True,
                "tie_word_embeddings": False,
                "layer_norm_epsilon": 1e-3,
                "embd_pdrop": 0.0,
                "attn_pdrop": 0.3,
            }
        )

    def llama(self) -> dict[str, Any]:
        heads, head_dim = self.pick(2, 4), self.pick(4, 6)
        config = {
            "hidden_size": self.pick(heads * head_dim, 16),
            "intermediate_size": self.pick(20, 24),
            "num_hidden_layers": self.pick(1, 2),
            "num_attention_heads": heads,
            "num_key_value_heads": self.pick(1, heads),
            "head_dim": head_dim,
            "max_position_embeddings": 96,
        } | self.some(
            {
                "mlp_bias": True,
                "tie_word_embeddings": self.maybe(0.5),
                "rms_norm_eps": 1e-3,
                "hidden_act": self.pick("gelu", "relu", "gelu_pytorch_tanh"),
                "rope_parameters": self.rotary(),
            }
        )
        if self.model_type not in ("mistral", "qwen2"):  # they do not read it
            config |= self.some({"attention_bias": True})
        if self.model_type in ("gemma2", "gemma3_text"):
            config |= self.gemma(config)
        elif self.model_type == "mistral":
            config["sliding_window"] = self.pick(4, 8, None)
        elif self.model_type.startswith("qwen"):
            config |= self.some({"use_sliding_window": True})
            config |= {"max_window_layers": 1, "sliding_window": self.pick(4, 8)}
        return config

    def gemma(self, config: dict[str, Any]) -> dict[str, Any]:
        fields = {
            "query_pre_attn_scalar": self.pick(5, 8, 16),
            "sliding_window": self.pick(4, 8),
        } | self.some(
            {
                "attn_logit_softcapping": self.pick(5.0, None),
                "final_logit_softcapping": self.pick(3.0, None),
                "hidden_activation": self.pick("gelu", "silu"),
                "layer_types": [
                    self.pick("sliding_attention", "full_attention")
                    for _ in range(config["num_hidden_layers"])
                ],
            }
        )
        if self.model_type == "gemma3_text":
            fields["rope_parameters"] = {
                "full_attention": self.rotary(),
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        return fields

    def config(self) -> dict[str, Any]:
        tokens = {
            "vocab_size": VOCABULARY,
            "pad_token_id": self.pick(0, None),
            "bos_token_id": self.pick(1, None),
            "eos_token_id": None,
        }
        return tokens | (self.gpt2() if self.model_type == "gpt2" else self.llama())


DRAWN = tuple(
    Decoder(
        f"drawn_{model_type}_{seed}",
        model_type,
        Grammar(model_type, seed).config(),
    )
    for model_type in TYPES
    for seed in range(2)
)
