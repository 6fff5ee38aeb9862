"""The models, and how one is made, run and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_attention_reference import safetensors_file

from ..golden_set import Unavailable

LAYERS = 2
LLAMA_LIKE = "layers.{}.self_attn"
BERT_LIKE = "encoder.layer.{}.attention"

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 8,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "vocab_size": 12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2_SIZES = {
    "n_embd": 24,
    "n_head": 4,
    "n_layer": LAYERS,
    "n_positions": 32,
    "n_inner": 8,
    "vocab_size": 12,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING_FIRST = ["sliding_attention", "full_attention"]


@dataclass(frozen=True)
class Model:
    """A model of two layers with random weights."""

    FILES: ClassVar = ("config.json", "model.safetensors", "expected.safetensors")

    name: str
    model_type: str
    # {} stands for the layer.
    path: str
    config: Mapping[str, Any] = field(default_factory=dict)
    # What a model with a head has before the names of the bare one.
    prefix: str = ""
    # Modules below `path` whose input and output are those of attention.
    first: str = ""
    last: str = ""

    def write(self, folder: Path) -> None:
        try:
            import transformers
        except ImportError as error:
            raise Unavailable(f"needs the package transformers: {error}")
        torch.manual_seed(1)
        config = transformers.AutoConfig.for_model(
            self.model_type, **self.config
        )
        config._attn_implementation = "eager"
        model = transformers.AutoModel.from_config(config).eval()
        draw_weights(model)
        expected = self.run(model)
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(folder)
        safetensors_file.write(
            folder / "model.safetensors", self.weights_of_attention(model)
        )
        safetensors_file.write(folder / "expected.safetensors", expected)

    def run(self, model: nn.Module) -> dict[str, Tensor]:
        """Returns what went into each attention, and what came out."""
        seen: dict[str, Tensor] = {}
        for layer in range(LAYERS):
            path = self.path.format(layer)
            first = model.get_submodule(f"{path}{self.first}")
            last = model.get_submodule(f"{path}{self.last}")

            def see_input(_, args, kwargs, layer=layer):
                hidden = kwargs.get("hidden_states")
                hidden = args[0] if hidden is None else hidden
                seen[f"{layer}.input"] = hidden.detach().clone()

            def see_output(_, args, output, layer=layer):
                output = output[0] if isinstance(output, tuple) else output
                seen[f"{layer}.output"] = output.detach().clone()

            first.register_forward_pre_hook(see_input, with_kwargs=True)
            last.register_forward_hook(see_output)
        tokens = torch.randint(3, 12, (2, 9))
        with torch.no_grad():
            model(tokens)
        return seen

    def weights_of_attention(self, model: nn.Module) -> dict[str, Tensor]:
        paths = tuple(self.path.format(i) + "." for i in range(LAYERS))
        return {
            self.prefix + key: value.contiguous()
            for key, value in model.state_dict().items()
            if key.startswith(paths)
        }


def draw_weights(model: nn.Module) -> None:
    """Draws weights of which all matter: norms and biases too."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
        else:
            nn.init.uniform_(parameter, 0.5, 1.0)


def llama_like(name: str, model_type: str = "", **config: Any) -> Model:
    return Model(
        name,
        model_type or name,
        LLAMA_LIKE,
        {**GROUPED, **config},
        prefix="model.",
    )


def bert_like(name: str, prefix: str, **config: Any) -> Model:
    return Model(
        name.replace("-", "_"),
        name,
        BERT_LIKE,
        {**SIZES, **config},
        prefix=prefix,
        first=".self",
        last=".output.dense",
    )


EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}

MODELS = (
    llama_like("llama"),
    llama_like(
        "llama_3_1",
        "llama",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    llama_like(
        "llama_yarn",
        "llama",
        attention_bias=True,
        head_dim=10,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 8,
        },
    ),
    llama_like(
        "llama_linear",
        "llama",
        num_key_value_heads=1,
        rope_parameters={
            "rope_type": "linear",
            "rope_theta": 10000.0,
            "factor": 2.0,
        },
    ),
    llama_like("mistral", sliding_window=4),
    llama_like("mixtral", num_local_experts=2, num_experts_per_tok=1),
    llama_like(
        "qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    llama_like("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=8),
    llama_like("qwen3", head_dim=8),
    llama_like("qwen3_moe", **EXPERTS, head_dim=8),
    llama_like("gemma", head_dim=8),
    llama_like("gemma2", head_dim=8, query_pre_attn_scalar=12, sliding_window=3),
    llama_like(
        "gemma3",
        "gemma3_text",
        head_dim=8,
        query_pre_attn_scalar=12,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
    ),
    llama_like("olmo2"),
    llama_like("olmo3", sliding_window=3, layer_types=SLIDING_FIRST),
    llama_like("granite", attention_multiplier=0.3),
    llama_like("smollm3", no_rope_layers=[1, 0]),
    llama_like("starcoder2", use_bias=True, sliding_window=3),
    llama_like("stablelm", hidden_size=32, use_qkv_bias=True),
    llama_like("cohere", use_qk_norm=True),
    llama_like("glm", head_dim=8),
    llama_like("exaone4", sliding_window=3, layer_types=SLIDING_FIRST),
    llama_like("phi", hidden_size=32),
    llama_like("phi3", sliding_window=4),
    Model("gpt2", "gpt2", "h.{}.attn", GPT2_SIZES, "transformer."),
    Model(
        "gpt2_by_layer",
        "gpt2",
        "h.{}.attn",
        {**GPT2_SIZES, "scale_attn_by_inverse_layer_idx": True},
    ),
    Model(
        "gptj", "gptj", "h.{}.attn", {**GPT2_SIZES, "rotary_dim": 4}, "transformer."
    ),
    Model(
        "gpt_neo",
        "gpt_neo",
        "h.{}.attn.attention",
        {
            "hidden_size": 24,
            "num_layers": LAYERS,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 3,
            "vocab_size": 12,
            "max_position_embeddings": 32,
            "intermediate_size": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "transformer.",
    ),
    Model(
        "opt",
        "opt",
        "decoder.layers.{}.self_attn",
        {**SIZES, "word_embed_proj_dim": 24, "ffn_dim": 8},
        "model.",
    ),
    bert_like("bert", "bert."),
    bert_like("roberta", "roberta."),
    bert_like("camembert", "roberta."),
    bert_like("xlm-roberta", ""),
    bert_like("electra", "electra.", embedding_size=24),
)
