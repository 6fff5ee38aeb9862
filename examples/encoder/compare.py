#!/usr/bin/env python3
"""Compares the tokens and vectors of `encoder` with those of `transformers`.

    pip install torch transformers
    ./compare.py FOLDER TEXT --encoder build/encoder

FOLDER holds a model, each line of TEXT is a sentence. Vectors have a cosine of
0.999999 or more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

LEAST = 0.999999


def read_json(path: Path) -> dict:
    return json.loads(path.read_text()) if path.is_file() else {}


class Reference:
    """The model in Python: each text alone, so that nothing is padded."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder).eval()
        self.normalizes = (folder / "modules.json").is_file() and any(
            part["type"].endswith("Normalize")
            for part in json.loads((folder / "modules.json").read_text())
        )
        limits = read_json(folder / "sentence_bert_config.json")
        self.max_length = limits.get("max_seq_length") or (
            self.model.config.max_position_embeddings
            - (2 if self.model.config.model_type == "mpnet" else 0)
        )
        flags = read_json(folder / "1_Pooling" / "config.json")
        chosen = [name for name, value in flags.items() if value is True]
        self.pooling = chosen[0] if chosen else "pooling_mode_mean_tokens"

    def ids(self, texts: list[str], **options) -> dict:
        return self.tokenizer(texts, padding=False, truncation=False, **options)

    @torch.no_grad()
    def vectors(self, texts: list[str]) -> Tensor:
        return torch.cat([self.pooled([text]) for text in texts])

    @torch.no_grad()
    def vectors_by_batches(self, texts: list[str], size: int = 32) -> Tensor:
        """As `sentence-transformers` does it: sorted by length, padded."""
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        rows = [
            self.pooled([texts[i] for i in order[begin : begin + size]])
            for begin in range(0, len(texts), size)
        ]
        result = torch.empty(len(texts), rows[0].shape[1])
        result[order] = torch.cat(rows)
        return result

    def pooled(self, texts: list[str]) -> Tensor:
        batch = self.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self.max_length,
            return_tensors="pt",
        )
        hidden = self.model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        if self.pooling == "pooling_mode_cls_token":
            result = hidden[:, 0]
        elif self.pooling == "pooling_mode_max_tokens":
            result = hidden.masked_fill(mask == 0, -torch.inf).amax(1)
        else:
            root = 0.5 if self.pooling == "pooling_mode_mean_sqrt_len_tokens" else 1
            result = (hidden * mask).sum(1) / mask.sum(1) ** root
        return torch.nn.functional.normalize(result) if self.normalizes else result


def run(*command: object, text: bytes | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command], input=text, check=True, capture_output=True
    )


def check_tokens(encoder: str, folder: Path, text: bytes, reference: Reference) -> bool:
    out = run(encoder, "tokens", "-", "--model", folder, text=text).stdout
    ours = [[int(token) for token in line.split()] for line in out.splitlines()]
    lines = text.decode("utf-8", "replace").split("\n")
    wanted = reference.ids(lines[:-1] if lines[-1] == "" else lines)["input_ids"]
    same = sum(mine == theirs for mine, theirs in zip(ours, wanted, strict=True))
    print(f"tokens: {same} of {len(wanted)} lines agree")
    return same == len(wanted)


def check_vectors(
    encoder: str, folder: Path, text: bytes, reference: Reference
) -> bool:
    lines = text.decode("utf-8", "replace").rstrip("\n").split("\n")
    wanted = reference.vectors(lines)
    start = time.perf_counter()
    reference.vectors_by_batches(lines)
    print(f"Python, batches of 32: {time.perf_counter() - start:.2f} s")
    fine = True
    for options in ([], ["--padded"]):
        with tempfile.TemporaryDirectory() as temporary:
            out = Path(temporary) / "vectors.pt"
            command = [encoder, "embed", "-", "--model", folder, "--out", out]
            done = run(*command, *options, text=text)
            ours = torch.load(out, weights_only=True)["vectors"]
        cosines = torch.nn.functional.cosine_similarity(
            ours.double(), wanted.double()
        )
        largest = (ours - wanted).abs().max().item()
        fine &= ours.shape == wanted.shape and cosines.min().item() >= LEAST
        print(
            f"vectors {' '.join(options) or 'packed'}: least cosine"
            f" {cosines.min().item():.9f}, largest difference {largest:.1e};"
            f" {done.stderr.decode().strip()}"
        )
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--encoder", required=True, help="the program")
    options = parser.parse_args()
    reference = Reference(options.folder)
    text = options.text.read_bytes()
    fine = check_tokens(options.encoder, options.folder, text, reference)
    fine &= check_vectors(options.encoder, options.folder, text, reference)
    return not fine


if __name__ == "__main__":
    sys.exit(main())
