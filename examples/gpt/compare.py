#!/usr/bin/env python3
"""Compares a folder's model with transformers: logits and greedy tokens.

    pip install torch transformers
    ./compare.py FOLDER --gpt build/gpt
    ./compare.py FOLDER --gpt build/gpt --saved   # of a GPT-2 that C++ wrote

With `--saved` the model is written by `gpt save`, and Python reads that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

TOLERANCE = 1e-4
NEW_TOKENS = 64
PROMPT_TOKENS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--gpt", default="gpt", help="the program")
    parser.add_argument("--saved", action="store_true")
    options = parser.parse_args()
    try:
        import torch
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        sys.exit(f"compare.py: {error}: pip install torch transformers")
    with tempfile.TemporaryDirectory() as temporary:
        theirs = options.folder
        if options.saved:
            theirs = Path(temporary) / "saved"
            subprocess.run(
                [options.gpt, "save", options.folder, "--out", theirs], check=True
            )
        model = AutoModelForCausalLM.from_pretrained(
            theirs, dtype=torch.float32
        ).eval()
        room = model.config.get_text_config().max_position_embeddings
        new_tokens = min(NEW_TOKENS, room - PROMPT_TOKENS)
        torch.manual_seed(0)
        vocabulary = model.get_input_embeddings().num_embeddings
        ids = torch.randint(vocabulary, (1, PROMPT_TOKENS))
        text = ",".join(map(str, ids[0].tolist()))
        out = Path(temporary) / "logits.safetensors"
        subprocess.run(
            [options.gpt, "logits", options.folder, "--ids", text, "--out", out],
            check=True,
        )
        with torch.no_grad():
            expected = model(ids).logits[0]
        difference = (load_file(out)["logits"] - expected).abs().max().item()
        model.generation_config.eos_token_id = None
        wanted = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )[0, PROMPT_TOKENS:].tolist()
        request = {"prompts": ids.tolist(), "new": new_tokens}
        answer = subprocess.run(
            [options.gpt, "measure", options.folder],
            input=json.dumps(request).encode(),
            check=True,
            capture_output=True,
        ).stdout
        (got,) = json.loads(answer)["tokens"]
    same = sum(a == b for a, b in zip(got, wanted))
    print(f"logits: the largest difference is {difference:.1e}")
    print(f"greedy tokens: {same} of {new_tokens} are equal")
    if difference > TOLERANCE or got != wanted:
        sys.exit(1)


if __name__ == "__main__":
    main()
