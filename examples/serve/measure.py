#!/usr/bin/env python3
"""Measures the program serve: tokens a second, and the times of tokens.

    ./measure.py FOLDER --serve build/serve --requests 1 8 32

For each number of requests, which are sent at once, prints the tokens a second,
and the median and the 99th percentile of the time to the first token and
between tokens. `--together N` lets N requests run at a time (default: all).
Prompts are random tokens, answers greedy.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from pathlib import Path


def vocabulary(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text())
    return config.get("text_config", config)["vocab_size"]


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class Server:
    """A program that runs, and the time when it is ready."""

    def __init__(self, arguments: argparse.Namespace, together: int) -> None:
        blocks = together * (2 + (arguments.prompt + arguments.new) // 128)
        command = [
            arguments.serve,
            str(arguments.folder),
            f"--max-requests={together}",
            f"--max-blocks={blocks}",
            f"--queue={max(arguments.requests)}",
            f"--dtype={arguments.dtype}",
            "--ignore-stop",
        ]
        if arguments.cache_dtype:
            command.append(f"--cache-dtype={arguments.cache_dtype}")
        if arguments.threads:
            command.append(f"--threads={arguments.threads}")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ask([{"id": "warm", "tokens": [1, 2, 3], "max_tokens": 4}])

    def ask(self, requests: list[dict]) -> dict[str, list[float]]:
        """Returns the seconds after which each request got its tokens."""
        start = time.perf_counter()
        self.process.stdin.write("".join(json.dumps(r) + "\n" for r in requests))
        self.process.stdin.flush()
        times: dict[str, list[float]] = {request["id"]: [] for request in requests}
        left = len(requests)
        while left > 0:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"serve ended with {self.process.wait()}")
            answer = json.loads(line)
            if "error" in answer:
                raise SystemExit(f"serve: {answer['error']}")
            if "done" in answer:
                left -= 1
            else:
                times[answer["id"]].append(time.perf_counter() - start)
        return times

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(arguments: argparse.Namespace, count: int) -> None:
    draw = random.Random(count)
    last = vocabulary(arguments.folder) - 1
    requests = [
        {
            "id": str(i),
            "tokens": [draw.randint(0, last) for _ in range(arguments.prompt)],
            "max_tokens": arguments.new,
        }
        for i in range(count)
    ]
    server = Server(arguments, min(count, arguments.together or count))
    times = list(server.ask(requests).values())
    server.close()
    seconds = max(each[-1] for each in times)
    first = [each[0] for each in times]
    between = [b - a for each in times for a, b in zip(each, each[1:])] or [0.0]
    print(
        f"| {count} | {sum(map(len, times)) / seconds:.1f} "
        f"| {percentile(first, 0.5):.3f}, {percentile(first, 0.99):.3f} "
        f"| {percentile(between, 0.5):.4f}, {percentile(between, 0.99):.4f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--serve", required=True, help="the program")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--together", type=int)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="new tokens of each")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cache-dtype", help="of keys and values, such as int8")
    arguments = parser.parse_args()
    print("| requests | tokens/s | first token, p50, p99 (s) | between, p50, p99 (s) |")
    print("| --- | --- | --- | --- |")
    for count in arguments.requests:
        measure(arguments, count)


main()
