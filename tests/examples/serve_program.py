"""Runs the program serve of examples/serve.

    python serve_program.py SERVE GPT GOLDEN LICENSE
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from program import Program

SERVE, GPT, GOLDEN, TEXT = sys.argv[1:5]
MODEL = f"{GOLDEN}/models/llama"
serve = Program(SERVE)
check = serve.check


def lines_of(requests: list[object]) -> str:
    return "".join(json.dumps(request) + "\n" for request in requests)


def answers(out: str) -> dict[str | None, list[dict]]:
    """Returns the lines of each request."""
    by_id: dict[str | None, list[dict]] = {}
    for line in out.splitlines():
        answer = json.loads(line)
        by_id.setdefault(answer.get("id"), []).append(answer)
    return by_id


def tokens_of(lines: list[dict]) -> list[int]:
    return [token for line in lines for token in line.get("tokens", [])]


def ask(*arguments: object, requests: list[object]) -> dict[str | None, list[dict]]:
    return answers(serve(*arguments, text=lines_of(requests))[0])


def test_tokens() -> None:
    """Each request gets the tokens that it gets alone."""
    requests = [
        {"id": f"r{i}", "tokens": [5 + i, 7, 9], "max_tokens": 10 + i, **how}
        for i, how in enumerate(
            [{}, {"temperature": 1, "seed": 3}, {"temperature": 0.7, "top_k": 9}]
        )
    ]
    small = ["--max-requests=2", "--block-size=64", "--max-blocks=3", "--chunk=2"]
    together = ask(MODEL, *small, "--same-bits", requests=requests)
    for request in requests:
        lines = ask(MODEL, "--same-bits", requests=[request])[request["id"]]
        tokens = tokens_of(lines)
        check(len(tokens) == request["max_tokens"], f"{lines}")
        got = together[request["id"]]
        check(tokens_of(got) == tokens, f"{request}: {got}, not {tokens}")
        end = {
            "id": request["id"],
            "done": "length",
            "usage": {"prompt_tokens": 3, "new_tokens": len(tokens)},
        }
        check(got[-1] == end, f"{got[-1]}, not {end}")


def test_int8() -> None:
    """Keys and values as int8 take less memory, and keep texts independent."""
    requests = [
        {"id": f"r{i}", "tokens": list(range(3, 20 + 9 * i)), "max_tokens": 12}
        for i in range(3)
    ]
    blocks = ["--block-size=64", "--max-blocks=3"]
    int8 = [*blocks, "--cache-dtype=int8", "--same-bits"]
    out, err = serve(
        MODEL, *int8, "--max-requests=2", "--chunk=7", text=lines_of(requests)
    )
    together = answers(out)
    for request in requests:
        alone = ask(MODEL, *int8, requests=[request])[request["id"]]
        tokens = tokens_of(alone)
        check(len(tokens) == request["max_tokens"], f"{alone}")
        got = together[request["id"]]
        check(tokens_of(got) == tokens, f"{request}: {got}, not {tokens}")

    def allocated(err: str) -> int:
        return int(re.search(r"of 3 blocks \((\d+) bytes\)", err)[1])

    config = json.loads(Path(MODEL, "config.json").read_text())
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rows = config["num_hidden_layers"] * config["num_key_value_heads"] * 2 * 3 * 64
    check(allocated(err) == rows * (size + 4), err)
    text = lines_of(requests)
    for arguments in ([], ["--cache-dtype=float32"]):
        err = serve(MODEL, *blocks, *arguments, text=text)[1]
        check(allocated(err) == rows * size * 4, err)


def test_bad_lines() -> None:
    good = lines_of([{"id": "a", "tokens": [5], "max_tokens": 3}])
    too_long = "[" + "1," * (1 << 23) + "1]\n"
    text = "{\n" + good + good + too_long + '\n{"cancel": "b"}'
    got = answers(serve(MODEL, text=text)[0])
    errors = {line["line"]: line["error"] for line in got[None]}
    expected = {
        1: "expected a JSON object",
        3: 'the id "a" is in use',
        4: "the line is too long",
        5: "expected a JSON object",
        6: 'no request "b"',
    }
    check(errors == expected, f"{errors}")
    check(len(tokens_of(got["a"])) == 3, f"{got['a']}")


def test_signals() -> None:
    """A signal lets the texts that run end, and refuses the others."""
    for name in ("SIGINT", "SIGTERM"):
        process = subprocess.Popen(
            [SERVE, MODEL, "--max-requests=1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        requests = [{"id": id, "tokens": [5], "max_tokens": 90} for id in "ab"]
        process.stdin.write(lines_of(requests))
        process.stdin.flush()
        first = process.stdout.readline()
        process.send_signal(signal.Signals[name])
        # The input stays open: the signal alone ends the program.
        rest = process.stdout.read()
        process.stdin.close()
        err = process.stderr.read()
        check(process.wait(timeout=60) == 0, f"{name}: {process.returncode} {err}")
        got = answers(first + rest)
        check(len(tokens_of(got["a"])) == 90, f"{name}: {got}")
        check(got["a"][-1]["done"] == "length", f"{name}: {got['a'][-1]}")
        ends = [line["done"] for line in got["b"] if "done" in line]
        check(ends == ["error"] and got["b"][-1]["error"] == "the server ends", f"{got}")
        check("90 tokens in 90 steps" in err, err)


def test_idle() -> None:
    """A signal ends a program that waits; answers come before the input ends."""
    process = subprocess.Popen(
        [SERVE, MODEL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    process.stdin.write(lines_of([{"id": "a", "tokens": [5], "max_tokens": 1}]))
    process.stdin.flush()
    got = [json.loads(process.stdout.readline()) for _ in range(2)]
    check(got[1]["done"] == "length", f"{got}")
    process.send_signal(signal.SIGTERM)
    check(process.wait(timeout=60) == 0, f"idle: {process.returncode}")


def test_texts(folder: Path) -> None:
    """The tokens of a model that gpt trains are bytes."""
    model, system = folder / "model", folder / "system.txt"
    sizes = ["--context=200", "--width=16", "--heads=2", "--layers=1", "--batch=2"]
    Program(GPT)("train", TEXT, *sizes, "--steps=30", "--out", model)
    system.write_text("You are a licence. ")
    requests = [
        {"id": str(i), "prompt": f"Grünes Licht {i}", "max_tokens": 40, "temperature": 2}
        for i in range(4)
    ]
    got = ask(model, "--system", system, requests=requests)
    for request in requests:
        request["prompt"] = system.read_text() + request["prompt"]
    alone = ask(model, "--max-requests=1", requests=requests)

    def texts(lines: list[dict]) -> str:
        return "".join(line.get("text", "") for line in lines)

    for request in requests:
        text = texts(got[request["id"]])
        check(len(text) > 5, f"{got}")
        check(text == texts(alone[request["id"]]), f"{text!r} {alone}")
    whole = texts(got["0"])
    # JSON has no bytes that are no characters.
    stop = re.search(r"[ -~]{2}", whole[1:])[0]
    requests[0]["stop"] = [stop]
    lines = ask(model, requests=requests[:1])["0"]
    check(texts(lines) == whole[: whole.index(stop)], f"{whole!r} {stop!r} {lines}")
    check(lines[-1]["done"] == "stop", f"{lines[-1]}")


def test_errors(folder: Path) -> None:
    serve.check_usage("does not exist", "nothing")
    serve.check_usage("--unknown", MODEL, "--unknown")
    serve.check_usage("--chunk", MODEL, "--chunk=0")
    serve.check_usage("--dtype", MODEL, "--dtype=int8")
    serve.check_usage("--cache-dtype", MODEL, "--cache-dtype=int4")
    serve.check_usage(
        "expected int8 or float32, but got bfloat16", MODEL, "--cache-dtype=bfloat16"
    )
    serve.check_error("model_type", f"{GOLDEN}/encoders/bert")
    system = folder / "system.json"
    system.write_text("[1, 2]")
    request = {"id": "a", "tokens": [5], "max_tokens": 4}
    got = ask(MODEL, "--system", system, requests=[request])["a"]
    whole = ask(MODEL, requests=[{**request, "tokens": [1, 2, 5]}])["a"]
    check(tokens_of(got) == tokens_of(whole), f"{got} {whole}")
    for text in ('"a"', '["a"]', "no"):
        system.write_text(text)
        serve.check_error("expected", MODEL, "--system", system)
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [SERVE, MODEL],
            input=lines_of([request]),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    check(run.returncode == 1, f"/dev/full: {run.returncode}")
    check("cannot write to standard output" in run.stderr, run.stderr)


def main() -> None:
    check("--max-blocks" in serve("--help")[0], "--help")
    with tempfile.TemporaryDirectory() as folder:
        test_tokens()
        test_int8()
        test_bad_lines()
        test_signals()
        test_idle()
        test_texts(Path(folder))
        test_errors(Path(folder))
    sys.exit(serve.failures > 0)


main()
