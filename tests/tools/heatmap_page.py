#!/usr/bin/env python3
"""Clicks through a page of `torch-attention heatmap` in headless Chromium.

    heatmap_page.py PROGRAM GOLDEN CHROMIUM [SCREENSHOTS]

Compares what the page shows with the weights that transformers gave
(tests/golden/heatmap), and the colors of a screenshot with those of the weights.
With SCREENSHOTS, a folder, keeps the pictures there.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from chromium import Chromium, Picture

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from torch_attention_reference import safetensors_file  # noqa: E402

LAYERS, HEADS, TOKENS = 3, 4, 9
HOSTILE = "</script><img/src=x>"
SECONDS = 240


RAMPS = {
    "light": (
        (0, (240, 244, 249)),
        (0.35, (156, 196, 228)),
        (0.7, (43, 110, 178)),
        (1, (8, 36, 82)),
    ),
    "dark": (
        (0, (27, 34, 44)),
        (0.35, (33, 74, 120)),
        (0.7, (74, 148, 222)),
        (1, (226, 241, 255)),
    ),
}


def color_of(weight: float, theme: str) -> tuple[float, ...]:
    at, ramp = math.sqrt(weight), RAMPS[theme]
    for (start, dark), (end, light) in zip(ramp, ramp[1:]):
        if at <= end:
            share = (at - start) / (end - start)
            return tuple(a + share * (b - a) for a, b in zip(dark, light))
    raise ValueError(weight)


def expect(got: Any, wanted: Any, what: str) -> None:
    if got != wanted:
        sys.exit(f"{what}: expected {wanted!r} but got {got!r}")


class PageTest:
    def __init__(self, browser: Chromium, weights: Any, causal: bool) -> None:
        self.browser = browser
        self.weights = weights  # [layer][head][query][key]
        self.causal = causal
        self.shots: dict[str, bytes] = {}

    def numbers(self) -> list[str]:
        return self.browser.value(
            "[...document.querySelectorAll('#keys .weight')]"
            ".map(e => e.textContent)"
        )

    def lines(self) -> list[list[int]]:
        return self.browser.value(
            "[...document.querySelectorAll('#lines path')]"
            ".map(e => [+e.dataset.query, +e.dataset.key])"
        )

    def said(self) -> str:
        return self.browser.value(
            "document.querySelector('#said').textContent"
        )

    def expect_row(self, layer: int, head: int, query: int) -> None:
        """The numbers and lines are those of one query."""
        what = f"layer {layer}, head {head}, token {query}"
        row = self.weights[layer][head][query]
        for key, number in enumerate(self.numbers()):
            if self.causal and key > query:
                expect(number, "", f"{what}: key {key}")
            elif abs(float(number) - row[key]) > 0.0007:
                sys.exit(f"{what}: key {key} is {number}, not {row[key]}")
        lines = self.lines()
        expect({line[0] for line in lines}, {query}, f"{what}: lines")
        # 0.01 is the least that is drawn; near it rounding decides.
        sure = {key for key, weight in enumerate(row) if weight > 0.0102}
        unsure = {key for key, weight in enumerate(row) if weight > 0.0098}
        keys = {line[1] for line in lines}
        if not sure <= keys <= unsure:
            sys.exit(f"{what}: lines to {keys}, not {sure}")
        if f"Layer {layer}, head {head}" not in self.said():
            sys.exit(f"{what}: {self.said()!r}")

    def query(self, token: int) -> tuple[float, float]:
        return self.browser.middle(
            f"#queries li:nth-child({token + 1}) button"
        )

    def choose(self, kind: str, index: int) -> None:
        self.browser.click(
            *self.browser.middle(f"#{kind} button:nth-child({index + 1})")
        )
        checked = self.browser.value(
            f"[...document.querySelectorAll('#{kind} button')]"
            ".findIndex(e => e.getAttribute('aria-checked') === 'true')"
        )
        expect(checked, index, f"the chosen of {kind}")

    def box(self, selector: str) -> list[float]:
        return self.browser.value(
            f"(() => {{ const b = document.querySelector({selector!r})"
            ".getBoundingClientRect();"
            " return [b.x, b.y, b.width, b.height]; })()"
        )

    def cell(self, query: int, key: int) -> tuple[float, float]:
        """Returns the middle of a cell of the matrix."""
        x, y, *_ = self.box("#matrix")
        size, labels = self.browser.value("[CELL, LABELS]")
        return x + labels + (key + 0.5) * size, y + labels + (query + 0.5) * size

    def hovers(self) -> None:
        browser = self.browser
        expect(len(self.numbers()), TOKENS, "tokens")
        expect(any(self.numbers()), False, "numbers before a choice")
        browser.move(*self.query(4))
        self.expect_row(0, 0, 4)
        browser.move(5, 5)
        expect(any(self.numbers()), False, "numbers after a hover")
        # Who attends to a token.
        browser.move(*browser.middle("#keys li:nth-child(2)"))
        expect({line[1] for line in self.lines()}, {1}, "lines to a token")
        browser.move(*self.cell(5, 3))
        self.expect_row(0, 0, 5)
        number = f"{self.weights[0][0][5][3]:.2f}"
        if "with weight " + number[:3] not in self.said():
            sys.exit(f"a cell: {self.said()!r}, not {number}")
        browser.move(*self.cell(2, 6))
        hidden = not any(self.numbers())
        expect(hidden, self.causal, "no numbers for a hidden key")

    def clicks(self) -> None:
        browser = self.browser
        self.choose("layers", 2)
        self.choose("heads", 3)
        browser.click(*self.query(6))
        browser.move(5, 5)
        self.expect_row(2, 3, 6)
        self.choose("heads", 1)
        browser.move(5, 5)
        self.expect_row(2, 1, 6)
        browser.click(*self.query(6))
        browser.move(5, 5)
        expect(any(self.numbers()), False, "numbers after a second click")
        browser.click(*self.cell(7, 0))
        browser.move(5, 5)
        self.expect_row(2, 1, 7)
        browser.press("Escape", 27)
        expect(any(self.numbers()), False, "numbers after Escape")

    def keys(self) -> None:
        browser = self.browser
        self.choose("layers", 0)
        self.choose("heads", 0)
        browser.move(5, 5)
        browser.press("ArrowDown", 40)
        self.expect_row(0, 0, 0)
        browser.press("ArrowDown", 40)
        browser.press("ArrowRight", 39)
        self.expect_row(0, 1, 1)
        browser.press("PageDown", 34)
        self.expect_row(1, 1, 1)
        for _ in range(TOKENS):
            browser.press("ArrowDown", 40)
        self.expect_row(1, 1, TOKENS - 1)
        for _ in range(HEADS):
            browser.press("ArrowLeft", 37)
        browser.press("PageUp", 33)
        self.expect_row(0, 0, TOKENS - 1)
        browser.press("Escape", 27)
        # Tab goes from the layers to the heads, and to the tokens.
        browser.value("document.querySelector('#layers [tabindex=\"0\"]').focus()")
        focused = []
        for _ in range(3):
            focused.append(
                browser.value("document.activeElement.closest('[id]').id")
            )
            browser.press("Tab", 9)
        expect(focused, ["layers", "heads", "queries"], "what Tab reaches")
        browser.press("Escape", 27)

    def colors(self, theme: str) -> None:
        """Every cell of a screenshot has the color of its weight."""
        browser = self.browser
        browser.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": theme}],
        )
        for layer, head in ((1, 2), (0, 0)):
            self.choose("layers", layer)
            self.choose("heads", head)
            browser.move(5, 5)
            box = self.box("#matrix")
            data = browser.screenshot(box)
            self.shots[f"{theme}-{layer}-{head}"] = data
            picture = Picture(data)
            paper = picture.color(2, 2)
            first = [a - b for a, b in zip(self.cell(0, 0), box)]
            size = browser.value("CELL")
            middles = {
                (query, key): (first[0] + key * size, first[1] + query * size)
                for query in range(TOKENS)
                for key in range(TOKENS)
            }
            for (query, key), (x, y) in middles.items():
                hidden = self.causal and key > query
                weight = self.weights[layer][head][query][key]
                wanted = paper if hidden else color_of(weight, theme)
                got = picture.color(int(x), int(y))
                if max(abs(a - b) for a, b in zip(got, wanted)) > 2:
                    sys.exit(
                        f"{theme}, layer {layer}, head {head}, cell"
                        f" {query}, {key}: {got}, not {wanted}"
                    )

    def run(self) -> None:
        self.hovers()
        self.clicks()
        self.keys()
        self.colors("light")
        self.colors("dark")
        box = self.box("#views")
        before = self.browser.screenshot(box)
        self.shots["all"] = before
        self.browser.move(*self.query(3))
        self.shots["one"] = self.browser.screenshot(box)
        expect(self.shots["one"] != before, True, "a hover is seen")


def read_expected(file: Path, ids: str, weights: str) -> tuple[list, Any]:
    stored, _ = safetensors_file.read(file)
    return stored[ids].tolist(), stored[weights].tolist()


def make_page(
    program: str, model: Path, ids: list[int], labels: list[str], page: Path
) -> None:
    subprocess.run(
        [
            *(program, "heatmap", str(model), "--out", str(page)),
            *("--ids", ",".join(map(str, ids))),
            *("--labels", " ".join(labels)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main(program: str, golden: str, chromium: str, shots: str = "") -> None:
    signal.alarm(SECONDS)
    root = Path(golden)
    folder = root / "heatmap"
    encoder = read_expected(
        folder / "bert/expected.safetensors", "ids", "attentions"
    )
    decoder = read_expected(
        folder / "decoders.safetensors", "gpt2.ids", "gpt2.attentions"
    )
    labels = [HOSTILE, "\u202e\u05e9", "&amp;", "a", "b", "c", "d", "e", "f"]
    with tempfile.TemporaryDirectory() as name:
        browser = Chromium(chromium, f"{name}/profile")
        try:
            page = Path(name) / "bert.html"
            make_page(program, root / "heatmap/bert", encoder[0], labels, page)
            browser.open(page)
            shown = browser.value(
                "[...document.querySelectorAll('#queries bdi')]"
                ".map(e => e.textContent)"
            )
            expect(
                shown,
                [HOSTILE, "\\u202e\u05e9", *labels[2:]],
                "the tokens that are shown",
            )
            expect(browser.value("document.images.length"), 0, "images")
            test = PageTest(browser, encoder[1], causal=False)
            test.run()
            requests = [url for url in browser.requests if url != page.as_uri()]
            expect(requests, ["about:blank"][: len(requests)], "requests")
            for shot, data in test.shots.items():
                if shots:
                    (Path(shots) / f"{shot}.png").write_bytes(data)

            page = Path(name) / "gpt2.html"
            ids = decoder[0][:TOKENS]
            make_page(program, root / "models/gpt2", ids, list("abcdefghi"), page)
            browser.call("Emulation.setEmulatedMedia", features=[])
            browser.open(page)
            causal = PageTest(browser, decoder[1], causal=True)
            causal.hovers()
            causal.colors("light")
        finally:
            browser.close()
    print("the page shows what transformers gave")


if __name__ == "__main__":
    main(*sys.argv[1:])
