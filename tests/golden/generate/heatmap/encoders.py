"""Small random encoders, and the attention weights of models."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_attention_reference import safetensors_file

from .. import models
from ..golden_set import Unavailable
from ..models.decoders import DECODERS
from ..packs import GOLDEN
from ..pretrained.model import draw_weights
from .word_pieces import VOCABULARY

TOKENS = 9


def transformers_package():
    try:
        import transformers
    except ImportError as error:
        raise Unavailable(f"needs the package transformers: {error}")
    return transformers


@torch.no_grad()
def attentions_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Returns the weights (L, H, T, T) of the tokens (T)."""
    output = model(ids[None], output_attentions=True)
    return torch.cat(output.attentions).contiguous()


@dataclass(frozen=True)
class Encoder:
    """A model of three layers with random weights."""

    name: str
    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = (
        "config.json",
        "model.safetensors",
        "expected.safetensors",
    )

    def write(self, folder: Path) -> None:
        transformers = transformers_package()
        torch.manual_seed(5)
        config = transformers.AutoConfig.for_model(
            self.model_type, **self.config
        )
        config._attn_implementation = "eager"
        model = transformers.AutoModel.from_config(config).eval()
        draw_weights(model)
        model.save_pretrained(folder)
        ids = torch.randint(5, len(VOCABULARY), (TOKENS,))
        expected = {"ids": ids, "attentions": attentions_of(model, ids)}
        safetensors_file.write(folder / "expected.safetensors", expected)


SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}

ENCODERS = (
    Encoder("bert", "bert", SIZES),
    Encoder(
        "roberta",
        "roberta",
        SIZES | {"pad_token_id": 1, "type_vocab_size": 1},
    ),
    # Embeddings of another size, and another activation.
    Encoder(
        "electra",
        "electra",
        SIZES | {"embedding_size": 16, "hidden_act": "relu"},
    ),
    Encoder(
        "distilbert",
        "distilbert",
        {
            "vocab_size": len(VOCABULARY),
            "dim": 24,
            "hidden_dim": 40,
            "n_layers": 3,
            "n_heads": 4,
            "max_position_embeddings": 32,
        },
    ),
)


def write_decoders(file: Path) -> None:
    transformers = transformers_package()
    expected: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as temporary:
        models.GOLDEN_SET.unpack(GOLDEN, Path(temporary))
        for decoder in DECODERS:
            folder = Path(temporary, models.GOLDEN_SET.folder, decoder.name)
            model = getattr(transformers, decoder.auto).from_pretrained(
                folder, attn_implementation="eager"
            )
            stored, _ = safetensors_file.read(folder / "expected.safetensors")
            ids = stored["ids"][0]
            expected[f"{decoder.name}.ids"] = ids
            expected[f"{decoder.name}.attentions"] = attentions_of(
                model.eval(), ids
            )
    safetensors_file.write(file, expected)
