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

HEADS, TOKENS = 4, 9
STEPS = 4095  # from weight 0 to weight 1
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


def color_of(weight: float, theme: str, ramp: Any = None) -> tuple[float, ...]:
    at, ramp = math.sqrt(weight), ramp or RAMPS[theme]
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
        size, labels = self.browser.value("[cellSide, labelRoom]")
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
        # Tab goes from the layers to the heads, and to the tokens; an input that
        # says whether there are several heads is between them.
        browser.value("document.querySelector('#layers [tabindex=\"0\"]').focus()")
        focused = []
        for _ in range(4):
            focused.append(
                browser.value("document.activeElement.closest('[id]').id")
            )
            browser.press("Tab", 9)
        reached = ["layers", "several", "heads", "queries"]
        expect(focused, reached, "what Tab reaches")
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
            size = browser.value("cellSide")
            middles = {
                (query, key): (first[0] + key * size, first[1] + query * size)
                for query in range(TOKENS)
                for key in range(TOKENS)
            }
            for (query, key), (x, y) in middles.items():
                hidden = self.causal and key > query
                weight = self.weights[layer][head][query][key]
                wanted = paper if hidden else color_of(weight, theme)
                self.expect_pixel(
                    f"{theme}, layer {layer}, head {head}, cell {query}, {key}",
                    picture.color(int(x), int(y)),
                    wanted,
                )

    def expect_pixel(self, what: str, got: Any, *allowed: Any) -> None:
        if not any(
            max(abs(a - b) for a, b in zip(got[:3], wanted)) <= 2
            for wanted in allowed
        ):
            sys.exit(f"{what}: {got}, not {allowed}")

    def expect_weight(
        self, what: str, got: Any, weight: float, ramp: Any = None
    ) -> None:
        """A pixel has the color of one of the steps that are next to its weight."""
        steps = (math.floor(weight * STEPS), math.ceil(weight * STEPS))
        colors = (color_of(step / STEPS, "light", ramp) for step in steps)
        self.expect_pixel(what, got, *colors)

    def pixels(self, selector: str) -> list[list[int]]:
        """Returns red, green, blue and alpha of a canvas with a pixel for each weight."""
        data = self.browser.value(
            f"(() => {{ const c = document.querySelector({selector!r});"
            " return [c.width, c.height, [...c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data]]; })()"
        )
        expect(data[:2], [TOKENS, TOKENS], f"the size of {selector}")
        return [data[2][at : at + 4] for at in range(0, len(data[2]), 4)]

    def overview(self) -> None:
        """All heads have a picture, and a click opens it."""
        browser = self.browser
        self.choose("modes", 1)
        hidden = browser.value("document.querySelector('#detail').hidden")
        expect(hidden, True, "the layer below the overview")
        count = browser.value("document.querySelectorAll('#overview canvas').length")
        layers, heads = len(self.weights), len(self.weights[0])
        expect(count, layers * heads, "pictures")
        for layer in range(layers):
            for head in range(heads):
                self.expect_picture(layer, head)
        self.shots["overview"] = browser.screenshot(self.box("#overview"))
        name = f"#overview [aria-label='layer {layers - 1}, head 1']"
        browser.click(*browser.middle(name))
        hidden = browser.value("document.querySelector('#overview').hidden")
        expect(hidden, True, "the overview after a click")
        browser.move(*self.query(3))
        self.expect_row(layers - 1, 1, 3)
        self.choose("modes", 1)
        # The first one goes to the picture of the open head; none goes outside.
        browser.press("ArrowDown", 40)
        browser.press("ArrowUp", 38)
        browser.press("ArrowUp", 38)
        browser.press("ArrowRight", 39)
        focused = browser.value("document.activeElement.getAttribute('aria-label')")
        expect(focused, "layer 0, head 2", "the picture that keys reach")
        browser.value("document.activeElement.click()")
        browser.move(*self.query(4))
        self.expect_row(0, 2, 4)

    def expect_picture(self, layer: int, head: int) -> None:
        what = f"the picture of layer {layer}, head {head}"
        name = f"#overview [data-layer='{layer}'][data-head='{head}']"
        self.browser.middle(name)
        # It is drawn when it is in view.
        while self.browser.value(f"document.querySelector({name!r}).width") != TOKENS:
            pass
        for at, got in enumerate(self.pixels(name)):
            query, key = divmod(at, TOKENS)
            if self.causal and key > query:
                expect(got[3], 0, f"{what}, cell {query}, {key}")
            else:
                weight = self.weights[layer][head][query][key]
                self.expect_weight(f"{what}, cell {query}, {key}", got, weight)

    def toggle_several(self) -> None:
        self.browser.click(*self.browser.middle("#several"))

    def several(self) -> None:
        """Lines, numbers and cells of several heads have the color of their head."""
        browser = self.browser
        self.choose("layers", 1)
        self.choose("heads", 3)
        self.toggle_several()
        browser.click(*browser.middle("#heads button:nth-child(1)"))
        browser.move(*self.query(5))
        rows = [self.weights[1][head][5] for head in (3, 0)]
        numbers = self.numbers()
        expect(len(numbers), 2 * TOKENS, "numbers of two heads")
        for at, number in enumerate(numbers):
            key, head = divmod(at, 2)
            if self.causal and key > 5:
                expect(number, "", f"key {key}")
            elif abs(float(number) - rows[head][key]) > 0.0007:
                sys.exit(f"key {key}: {number}, not {rows[head][key]}")
        lines = browser.value(
            "[...document.querySelectorAll('#lines path')].map(e =>"
            " [+e.dataset.head, +e.dataset.key, getComputedStyle(e).stroke])"
        )
        colors = browser.value("[headColor(0), headColor(1)]")
        for head, row, color in zip((3, 0), rows, colors):
            sure = {key for key, weight in enumerate(row) if weight > 0.0102}
            drawn = {key for each, key, _ in lines if each == head}
            expect(sure - drawn, set(), f"lines that head {head} lacks")
            strokes = {stroke for each, _, stroke in lines if each == head}
            expect(strokes, {"rgb({}, {}, {})".format(*color)}, f"strokes of head {head}")
        if "Layer 1, heads 3, 0: " not in self.said() or "(head 0)." not in self.said():
            sys.exit(f"two heads: {self.said()!r}")
        self.shots["two heads"] = browser.screenshot(self.box("#views"))
        self.expect_overlaid(colors)
        # The last one cannot be taken away.
        for child in (4, 1, 1):
            browser.click(*browser.middle(f"#heads button:nth-child({child})"))
        browser.move(5, 5)
        expect(browser.value("[...state.heads]"), [[0, 1]], "the head that remains")
        self.toggle_several()
        browser.move(*self.query(5))
        self.expect_row(1, 0, 5)

    def expect_overlaid(self, colors: list[list[int]]) -> None:
        """A cell has the color of the head with the largest weight."""
        self.browser.move(5, 5)
        data = self.browser.value(
            "[...cells.getContext('2d').getImageData(0, 0, cells.width, cells.height).data]"
        )
        for query in range(TOKENS):
            for key in range(query + 1 if self.causal else TOKENS):
                weights = [self.weights[1][head][query][key] for head in (3, 0)]
                if abs(weights[0] - weights[1]) < 0.001:
                    continue
                most = weights.index(max(weights))
                ramp = (RAMPS["light"][0], (1, colors[most]))
                at = 4 * (query * TOKENS + key)
                pixel = data[at : at + 4]
                self.expect_weight(f"cell {query}, {key}", pixel, weights[most], ramp)

    def run(self) -> None:
        self.hovers()
        self.clicks()
        self.keys()
        self.overview()
        self.several()
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
            causal.overview()
            causal.several()
        finally:
            browser.close()
    print("the page shows what transformers gave")


if __name__ == "__main__":
    main(*sys.argv[1:])
