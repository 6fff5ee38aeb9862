"""Reference cases of a real encoder's attention: all-MiniLM-L6-v2."""

from __future__ import annotations

import time
import unicodedata
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_attention_reference import ExportError, safetensors_file
from torch_attention_reference.archives import saved
from torch_attention_reference.classes import MultiHeadAttention

from .case import Case, write_module

HIDDEN = 384
HEADS = 12
LAYERS = 6
POSITIONS = 512

# The first two mean the same. All have the same number of tokens, so that they
# make one batch without padding.
SENTENCES = [
    "The cat is sleeping on the sofa.",
    "A kitten is resting on the couch.",
    "The bank has raised its interest rates.",
    "Heavy rain flooded the streets last night.",
]

# Our names -> those of the encoder, below encoder.layer.N.attention.
MINILM_NAMES = {
    "W_query": "self.query",
    "W_key": "self.key",
    "W_value": "self.value",
    "out_proj": "output.dense",
}


class WordPiece:
    """Splits texts into BERT's lower-case tokens, by greedy longest match."""

    def __init__(self, vocab: Path) -> None:
        lines = vocab.read_text(encoding="utf-8").splitlines()
        self.ids = {token: i for i, token in enumerate(lines)}
        missing = {"[CLS]", "[SEP]", "[UNK]"} - self.ids.keys()
        if missing:
            raise ExportError(f"{vocab}: lacks {', '.join(sorted(missing))}")

    def encode(self, sentence: str) -> list[int]:
        tokens = ["[CLS]"]
        for word in self.words(sentence):
            tokens += self.pieces(word)
        return [self.ids[token] for token in [*tokens, "[SEP]"]]

    def words(self, sentence: str) -> list[str]:
        """Lower case, no accents, punctuation apart."""
        spaced = ""
        for char in unicodedata.normalize("NFD", sentence.lower()):
            category = unicodedata.category(char)
            if category.startswith("P"):
                spaced += f" {char} "
            elif category != "Mn":
                spaced += char
        return spaced.split()

    def pieces(self, word: str) -> list[str]:
        pieces: list[str] = []
        rest = word
        while rest:
            prefix = "##" if pieces else ""
            ends = range(len(rest), 0, -1)
            end = next((n for n in ends if prefix + rest[:n] in self.ids), 0)
            if end == 0:
                return ["[UNK]"]
            pieces.append(prefix + rest[:end])
            rest = rest[end:]
        return pieces


class Encoder:
    """The BERT encoder on its plain weights, after the papers' formulas."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def weight(self, name: str) -> Tensor:
        if name not in self.weights:
            raise ExportError(f"the model has no {name}")
        return self.weights[name].float()

    def embed(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, HIDDEN): words, positions, first segment."""
        words, positions, segments = (
            self.weight(f"embeddings.{kind}_embeddings.weight")
            for kind in ("word", "position", "token_type")
        )
        x = words[ids] + positions[: ids.shape[1]] + segments[0]
        return self.norm("embeddings.LayerNorm", x)

    def attention(self, layer: int, x: Tensor) -> Tensor:
        """Up to and with the output's dense layer, without its residual."""
        name = f"encoder.layer.{layer}.attention"
        q, k, v = (
            self.linear(f"{name}.self.{part}", x).unflatten(-1, (HEADS, -1))
            for part in ("query", "key", "value")
        )
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        context = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
        return self.linear(f"{name}.output.dense", context.flatten(-2))

    def layer(self, layer: int, x: Tensor) -> Tensor:
        name = f"encoder.layer.{layer}"
        x = x + self.attention(layer, x)
        x = self.norm(f"{name}.attention.output.LayerNorm", x)
        y = F.gelu(self.linear(f"{name}.intermediate.dense", x))
        y = x + self.linear(f"{name}.output.dense", y)
        return self.norm(f"{name}.output.LayerNorm", y)

    def linear(self, name: str, x: Tensor) -> Tensor:
        weight = self.weight(f"{name}.weight")
        return F.linear(x, weight, self.weight(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.weight(f"{name}.weight")
        bias = self.weight(f"{name}.bias")
        return F.layer_norm(x, (HIDDEN,), weight, bias, eps=1e-12)


def write(folder: Path, model: Path, vocab: Path | None) -> None:
    """Writes two cases for each layer: its attention on real sentences."""
    start = time.monotonic()
    weights, _ = safetensors_file.read(model)
    encoder = Encoder(weights)
    tokenizer = WordPiece(vocab or model.with_name("vocab.txt"))
    ids = [tokenizer.encode(sentence) for sentence in SENTENCES]
    if len({len(row) for row in ids}) != 1:
        raise ExportError("this vocabulary gives sentences of unequal length")

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(123)
    x = encoder.embed(torch.tensor(ids))
    for layer in range(LAYERS):
        write_layer(folder, encoder, layer, x, generator, model)
        x = encoder.layer(layer, x)
    check_embeddings(F.normalize(x.mean(dim=1), dim=-1))
    print(f"{2 * LAYERS} cases in {time.monotonic() - start:.1f} s")


def check_embeddings(embeddings: Tensor) -> None:
    """Shows by the sentences' embeddings that the encoder is the real one."""
    alike, *unrelated = (embeddings[1:] @ embeddings[0]).tolist()
    print(f"cosine {alike:+.3f}  {SENTENCES[0]} | {SENTENCES[1]}")
    for cosine, sentence in zip(unrelated, SENTENCES[2:], strict=True):
        print(f"cosine {cosine:+.3f}  {SENTENCES[0]} | {sentence}")
    if alike < max(unrelated) + 0.3:
        raise ExportError("like sentences are not closer than unrelated ones")


def write_layer(
    folder: Path,
    encoder: Encoder,
    layer: int,
    x: Tensor,
    generator: torch.Generator,
    model: Path,
) -> None:
    """Writes one layer's attention as MultiHeadAttention; x: (B, T, C).

    The second case is the same with the model's own file for weights.
    """
    case = Case(
        "mha",
        HIDDEN,
        HIDDEN,
        x.shape[1],
        POSITIONS,
        num_heads=HEADS,
        qkv_bias=True,
        causal=False,
    )
    module = MultiHeadAttention(**case.arguments).eval()
    state = module.state_dict()
    prefix = f"encoder.layer.{layer}.attention"
    for ours, theirs in MINILM_NAMES.items():
        for part in ("weight", "bias"):
            name = f"{prefix}.{theirs}.{part}"
            state[f"{ours}.{part}"] = encoder.weight(name)
    module.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(module(x), encoder.attention(layer, x))
    expected = write_module(
        folder,
        f"minilm-layer{layer}",
        module,
        case.arguments,
        x,
        generator,
        case.seed,
    )
    own = folder / f"minilm-file-layer{layer}.safetensors"
    own.unlink(missing_ok=True)
    own.symlink_to(model.resolve())
    expected["prefix"] = prefix
    own.with_suffix(".expected.pt").write_bytes(saved(expected))
