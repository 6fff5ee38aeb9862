"""Small random decoders of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_attention_reference import safetensors_file

from ..golden_set import Unavailable
from ..pretrained.model import draw_weights

VOCABULARY = 64
NEW_TOKENS = 64
# Greedy tokens are compared: the likeliest must be so beyond rounding.
MARGIN = 1e-4


@dataclass(frozen=True)
class Decoder:
    """A model of two layers with random weights."""

    name: str
    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    # The automatic class of transformers.
    auto: str = "AutoModelForCausalLM"
    seed: int = 1
    # Bytes of each file of weights; none for one file.
    shard_size: int | None = None
    num_shards: int = 1

    @property
    def files(self) -> list[str]:
        weights = ["model.safetensors"]
        if self.num_shards > 1:
            weights = ["model.safetensors.index.json"] + [
                f"model-{i + 1:05}-of-{self.num_shards:05}.safetensors"
                for i in range(self.num_shards)
            ]
        return [
            "config.json",
            "generation_config.json",
            "expected.safetensors",
            *weights,
        ]

    def write(self, folder: Path) -> None:
        try:
            import transformers
        except ImportError as error:
            raise Unavailable(f"needs the package transformers: {error}")
        torch.manual_seed(self.seed)
        config = transformers.AutoConfig.for_model(
            self.model_type, **self.config
        )
        config._attn_implementation = "eager"
        model = getattr(transformers, self.auto).from_config(config).eval()
        draw_weights(model)
        model.save_pretrained(
            folder,
            **({"max_shard_size": self.shard_size} if self.shard_size else {}),
        )
        expected = run(model)
        safetensors_file.write(folder / "expected.safetensors", expected)


@torch.no_grad()
def run(model: nn.Module) -> dict[str, Tensor]:
    ids = torch.randint(3, VOCABULARY, (2, 12))
    prompts = torch.randint(3, VOCABULARY, (3, 9))
    lengths = torch.tensor([9, 4, 1])
    mask = (torch.arange(9) >= 9 - lengths[:, None]).long()
    prompts *= mask
    generated = model.generate(
        prompts,
        attention_mask=mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack(generated.logits).topk(2).values
    margin = (best[..., 0] - best[..., 1]).min().item()
    if margin < MARGIN:
        raise ValueError(f"{model.config.model_type}: the margin is {margin}")
    greedy = generated.sequences[:, 9:].contiguous()
    if greedy.shape != (3, NEW_TOKENS):
        raise ValueError(f"{model.config.model_type}: {greedy.shape}")
    return {
        "ids": ids,
        "logits": model(ids).logits.contiguous(),
        "prompts": prompts,
        "lengths": lengths,
        "greedy": greedy,
    }


SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GPT2_SIZES = {
    "n_embd": 24,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 96,
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GEMMA = {**SIZES, "head_dim": 8, "query_pre_attn_scalar": 8}

DECODERS = (
    Decoder("gpt2", "gpt2", GPT2_SIZES),
    Decoder(
        "gpt2_untied",
        "gpt2",
        {
            **GPT2_SIZES,
            "n_inner": 40,
            "tie_word_embeddings": False,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    Decoder("llama", "llama", SIZES, shard_size="24KB", num_shards=3),
    Decoder(
        "llama_3_1",
        "llama",
        {
            **SIZES,
            "mlp_bias": True,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    Decoder("mistral", "mistral", {**SIZES, "sliding_window": 8}),
    Decoder("qwen2", "qwen2", SIZES),
    Decoder("qwen3", "qwen3", {**SIZES, "head_dim": 8}),
    Decoder("gemma", "gemma", {**SIZES, "head_dim": 8}),
    Decoder("gemma2", "gemma2", {**GEMMA, "sliding_window": 8}),
    Decoder(
        "gemma3",
        "gemma3_text",
        {
            **GEMMA,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    Decoder(
        "gemma3_with_images",
        "gemma3",
        {
            "text_config": {**GEMMA, "sliding_window": 8},
            "vision_config": {
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 8,
                "patch_size": 4,
            },
            "mm_tokens_per_image": 1,
            "image_token_index": 2,
            "eos_token_id": None,
            "tie_word_embeddings": True,
        },
        auto="AutoModelForImageTextToText",
    ),
)
