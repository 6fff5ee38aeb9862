"""Runs the program gpt of examples/gpt.

    python gpt_program.py GPT GOLDEN LICENSE
"""

from __future__ import annotations

import json
import re
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from program import Program

GPT, GOLDEN, TEXT = sys.argv[1:4]
MODEL = f"{GOLDEN}/models/llama"
gpt = Program(GPT)
check, check_error = gpt.check, gpt.check_error


def tensors_of(path: Path) -> tuple[dict[str, tuple], dict[str, str]]:
    """Returns dtype, shape and bytes of each tensor of a safetensors file, and
    the metadata."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    values = data[8 + size :]
    return {
        name: (entry["dtype"], entry["shape"], values[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }, metadata


def integers(path: Path, name: str) -> list[list[int]]:
    """Returns the rows of an int64 matrix of a safetensors file."""
    _, (_, columns), data = tensors_of(path)[0][name]
    values = struct.unpack(f"<{len(data) // 8}q", data)
    return [list(values[i : i + columns]) for i in range(0, len(values), columns)]


def small_model(folder: Path) -> Path:
    """Returns a model without dropout."""
    sizes = ["--context=32", "--width=16", "--heads=2", "--layers=1", "--batch=2"]
    steps = ["--steps=1", "--dropout=0"]
    gpt("train", TEXT, *sizes, *steps, "--out", folder / "small")
    return folder / "small"


def test_measure(folder: Path) -> None:
    def ask(model: object, *requests: object) -> list[dict]:
        text = "".join(json.dumps(request) + "\n" for request in requests)
        out = gpt("measure", model, text=text)[0]
        return [json.loads(line) for line in out.splitlines()]

    expected = Path(MODEL) / "expected.safetensors"
    prompts = integers(expected, "prompts")[:1]
    greedy = integers(expected, "greedy")[0]
    one, many = ask(
        MODEL, {"prompts": prompts, "new": 1}, {"prompts": prompts, "new": 9}
    )
    check(one["tokens"] == [greedy[:1]], f"one token: {one}")
    check(many["tokens"] == [greedy[:9]], f"nine tokens: {many}")
    check(many["prompt_seconds"] > 0 and many["text_seconds"] > 0, f"{many}")

    rows = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    steps = ask(small_model(folder), *[{"train": rows}] * 3)
    losses = [step["loss"] for step in steps]
    check(losses[0] > losses[1] > losses[2], f"losses fall: {losses}")
    check(all(step["seconds"] > 0 for step in steps), f"{steps}")


def test_errors(folder: Path) -> None:
    out = ["--out", folder / "logits.safetensors"]
    logits = ["logits", MODEL, *out]
    check_error("Expected tokens as 1,2,3", *logits, "--ids", "1;2")
    gpt.check_usage("does not exist", "logits", "nothing", *out, "--ids", "1")
    gpt.check_usage("--unknown", *logits, "--ids", "1", "--unknown")
    gpt.check_usage("A subcommand is required")
    measured = ["measure", f"{GOLDEN}/models/gpt2"]
    check_error("two tokens to train on", *measured, text='{"train": [[1]]}')
    check_error("of the same length", *measured, text='{"train": [[1, 2], [1]]}')
    check_error('Expected {"prompts"', *measured, text="1,2,3")
    gpt.check_usage("--dtype", *measured, "--dtype", "int8")


def test_training(folder: Path) -> None:
    sizes = ["--context=32", "--width=16", "--heads=2", "--layers=1", "--batch=2"]
    start = ["train", TEXT, *sizes, "--warmup=2", "--save-every=3"]
    run = [*start, "--steps=8"]
    whole, parts = folder / "whole", folder / "parts"
    err = gpt(*run, "--out", whole)[1]
    lines = err.splitlines()
    check(lines[0].startswith("step 1 of 8, loss 5."), err)
    check("step 8 of 8, loss 5." in lines[-1] and "validation loss" in lines[-1], err)
    gpt(*run, "--out", parts, "--stop-after=4")
    check_error("has a checkpoint", *run, "--out", parts)
    check_error("expected --lr 0.003", *run, "--out", parts, "--resume", "--lr=0.1")
    gpt(*run, "--out", parts, "--resume")
    for name in ("losses.csv", "losses.svg", "model.safetensors", "config.json"):
        same = (whole / name).read_bytes() == (parts / name).read_bytes()
        check(same, f"{name} differs after an interruption")
    check(len((whole / "losses.csv").read_text().splitlines()) == 9, "losses.csv")
    (whole / "losses.svg").read_text().index("<polyline")
    again = gpt(*run, "--out", parts, "--resume")[1]
    check("all 8 steps are done: give more by --steps" in again, again)
    more = gpt(*start, "--out", parts, "--resume", "--steps=10")[1]
    check("step 10 of 10" in more, more)
    saved = folder / "saved"
    gpt("save", f"{GOLDEN}/models/gpt2", "--out", saved)
    logits = folder / "logits.safetensors"
    gpt("logits", saved, "--ids", "1,2,3", "--out", logits)
    copies = logits.read_bytes()
    gpt("logits", f"{GOLDEN}/models/gpt2", "--ids", "1,2,3", "--out", logits)
    check(logits.read_bytes() == copies, "a saved model has other logits")


def test_interruption(folder: Path) -> None:
    """A run that a signal ends can go on; the first step is printed at once."""
    sizes = ["--context=32", "--width=16", "--heads=2", "--layers=1", "--batch=2"]
    for name in ("SIGINT", "SIGTERM"):
        out = folder / name
        run = ["train", TEXT, *sizes, "--steps=1000000", "--out", out]
        process = subprocess.Popen(
            [GPT, *map(str, run)], stderr=subprocess.PIPE, text=True
        )
        first = process.stderr.readline()
        check(first.startswith("step 1 of 1000000, "), f"{name}: {first!r}")
        process.send_signal(signal.Signals[name])
        err = process.communicate(timeout=60)[1]
        ended = re.search(r"ended after step (\d+); --resume goes on", err)
        check(process.returncode == -signal.Signals[name], f"{process.returncode}")
        if not ended:
            check(False, f"{name}: {err}")
            continue
        step = int(ended[1])
        rows = (out / "losses.csv").read_text().splitlines()
        check(len(rows) == step + 1, f"{name}: {len(rows)} rows, step {step}")
        err = gpt(*run, "--resume", f"--stop-after={step + 1}")[1]
        check(f"step {step + 1} of 1000000" in err, f"{name}: {err}")


def test_saved(folder: Path) -> None:
    """C++ saves the tensors that transformers' save_pretrained wrote."""
    for name in ("gpt2", "gpt2_untied"):
        theirs, ours = Path(f"{GOLDEN}/models/{name}"), folder / name
        gpt("save", theirs, "--out", ours)
        expected, metadata = tensors_of(theirs / "model.safetensors")
        got, our_metadata = tensors_of(ours / "model.safetensors")
        check(sorted(got) == sorted(expected), f"{name}: {set(got) ^ set(expected)}")
        for key in set(got) & set(expected):
            check(got[key] == expected[key], f"{name}: {key} differs")
        check(our_metadata.items() >= metadata.items(), f"{name}: {our_metadata}")
        config = json.loads((theirs / "config.json").read_text())
        for field, value in json.loads((ours / "config.json").read_text()).items():
            wanted = config[field]
            if field == "n_inner" and wanted is None:
                wanted = 4 * config["n_embd"]
            check(value == wanted, f"{name}: {field} is {value}, not {wanted}")


def main() -> None:
    check("train" in gpt("--help")[0], "--help")
    with tempfile.TemporaryDirectory() as folder:
        test_errors(Path(folder))
        test_training(Path(folder))
        test_interruption(Path(folder))
        test_measure(Path(folder))
        test_saved(Path(folder))
    sys.exit(gpt.failures > 0)


main()
