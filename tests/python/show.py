"""torch_attention.show: pages of the weights that models of transformers return, and what
is refused.

    python show.py [CHROMIUM]

With CHROMIUM, a program, also opens pages and compares what they show.
"""

from __future__ import annotations

import html.parser
import json
import pathlib
import re
import signal
import sys
import tempfile
from typing import Any

import torch
import transformers
from torch import Tensor

from torch_attention import AttentionPage, show

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))

from chromium import Chromium, Picture  # noqa: E402

STEPS = 4095
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
HOSTILE = ["</script><img/src=x>", "<!--", "&amp;", "\u202e\u05e9", "", "\ud800", "\U0001f600", "a\nb"]
SHOWN = [*HOSTILE[:3], "\\u202e\u05e9", '""', "\\ud800", "\U0001f600", "a\\u000ab"]
SECONDS = 120


class Frame(html.parser.HTMLParser):
    """The attributes of the only iframe of what a notebook gets."""

    attributes: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag == "iframe" and self.attributes is None, tag
        self.attributes = dict(attributes)


def text_of(page: AttentionPage) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "page.html")
        page.save(path)
        return path.read_text(encoding="utf-8")


def data_of(page: AttentionPage) -> dict[str, Any]:
    """Returns the data as a browser gives it to the page's script."""
    text = text_of(page)
    start = '<script type="application/json" id="data">'
    assert text.count(start) == 1
    return json.loads(text.split(start)[1].split("</script>")[0])


def decoded(letters: str, T: int, S: int, causal: bool) -> Tensor:
    weights, at = torch.zeros(T, S), 0
    for query in range(T):
        for key in range(query + 1 if causal else S):
            high, low = (LETTERS.index(letter) for letter in letters[at : at + 2])
            weights[query, key] = (64 * high + low) / STEPS
            at += 2
    assert at == len(letters)
    return weights


def expect_weights(attention: dict[str, Any], expected: tuple[Tensor, ...], causal: bool) -> None:
    """All layers and heads of a page's attention are those of a model."""
    T, S = len(attention["queries"]), len(attention["keys"])
    assert [layer["layer"] for layer in attention["layers"]] == list(range(len(expected)))
    for layer, weights in zip(attention["layers"], expected):
        assert layer["causal"] == causal, attention["name"]
        assert attention["heads"] == list(range(weights.size(1))) and len(layer["weights"]) > 1
        for head, letters in enumerate(layer["weights"]):
            got = decoded(letters, T, S, causal)
            torch.testing.assert_close(got, weights[0, head], rtol=0, atol=0.5 / STEPS + 1e-6)


def run(model_type: str, **fields: Any) -> tuple[Any, list[str], list[str]]:
    """Returns the outputs of a small model, and names of its and its decoder's tokens."""
    config = transformers.CONFIG_MAPPING[model_type](vocab_size=30, **fields)
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config).eval()
    ids = torch.randint(3, 30, (1, 7))
    decoder_ids = torch.randint(3, 30, (1, 4))
    inputs = {"decoder_input_ids": decoder_ids} if config.is_encoder_decoder else {}
    with torch.no_grad():
        outputs = model(ids, output_attentions=True, **inputs)
    return outputs, [f"s{i}" for i in ids[0]], [f"t{i}" for i in decoder_ids[0]]


def encoder_decoder() -> tuple[Any, list[str], list[str]]:
    return run(
        "bart", d_model=16, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
        decoder_attention_heads=4, encoder_ffn_dim=16, decoder_ffn_dim=16,
    )


def test_models_of_one_stack() -> None:
    gpt2, tokens, _ = run("gpt2", n_embd=16, n_layer=2, n_head=2)
    data = data_of(show(gpt2.attentions, tokens, title="GPT-2"))
    assert data["title"] == "GPT-2"
    (attention,) = data["attentions"]
    assert attention["queries"] == attention["keys"] == tokens
    expect_weights(attention, gpt2.attentions, causal=True)
    bert, tokens, _ = run(
        "bert", hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16
    )
    (attention,) = data_of(show(bert.attentions, tokens))["attentions"]
    expect_weights(attention, bert.attentions, causal=False)
    # Without a batch, of half precision, and some of them.
    half = [layer[0].bfloat16() for layer in bert.attentions]
    (attention,) = data_of(show(half, tokens, layers=[1], heads=(3, 0)))["attentions"]
    assert attention["heads"] == [0, 3] and len(attention["layers"]) == 1
    assert attention["layers"][0]["layer"] == 1
    for letters, head in zip(attention["layers"][0]["weights"], (0, 3)):
        got = decoded(letters, 7, 7, causal=False)
        torch.testing.assert_close(got, half[1][head].float(), rtol=0, atol=0.5 / STEPS + 1e-6)


def test_encoder_and_decoder() -> None:
    outputs, tokens, decoder_tokens = encoder_decoder()
    page = show(
        encoder_attentions=outputs.encoder_attentions,
        decoder_attentions=outputs.decoder_attentions,
        cross_attentions=outputs.cross_attentions,
        tokens=tokens,
        decoder_tokens=decoder_tokens,
    )
    encoder, decoder, cross = data_of(page)["attentions"]
    assert [each["name"] for each in (encoder, decoder, cross)] == ["encoder", "decoder", "cross"]
    assert encoder["queries"] == encoder["keys"] == cross["keys"] == tokens
    assert decoder["queries"] == decoder["keys"] == cross["queries"] == decoder_tokens
    expect_weights(encoder, outputs.encoder_attentions, causal=False)
    expect_weights(decoder, outputs.decoder_attentions, causal=True)
    expect_weights(cross, outputs.cross_attentions, causal=False)


def test_hostile_tokens() -> None:
    weights = torch.rand(1, 2, len(HOSTILE), len(HOSTILE))
    page = show([weights], HOSTILE, title="</title><script>")
    text, data = text_of(page), data_of(page)
    assert data["attentions"][0]["keys"] == SHOWN
    assert data["title"] == "</title><script>"
    assert text.count("<script") == 2 and "<!--" not in text and "<img" not in text
    assert "\u202e" not in text
    # No address but that of a namespace.
    assert set(re.findall(r"https?:[^\"]*", text)) == {"http://www.w3.org/2000/svg"}
    frame = Frame()
    frame.feed(page._repr_html_())
    assert frame.attributes is not None
    assert frame.attributes["srcdoc"] == text
    assert frame.attributes["sandbox"] == "allow-scripts"


def refused(text: str, *arguments: Any, **options: Any) -> None:
    try:
        show(*arguments, **options)
    except (TypeError, ValueError) as error:
        assert text in str(error), f"another message: {error}"
        assert str(error).startswith("show: expected"), error
    else:
        raise AssertionError(f"no error: {text}")


def test_refused() -> None:
    tokens = list("abcde")
    weights = torch.softmax(torch.randn(1, 2, 5, 5), -1)
    refused("as many tokens as attentions[0] has, which is 5 of (1, 2, 5, 5), but got 4",
            [weights], tokens[:4])
    refused("but got NoneType", [weights])
    refused("a list of texts as tokens", [weights], "abcde")
    refused("texts in tokens, but got int: 0", [weights], list(range(5)))
    refused("attentions[1] has a batch of 3", [weights, weights.expand(3, -1, -1, -1)], tokens)
    refused("one for each layer, but got Tensor", weights, tokens)
    refused("call the model on all tokens", [(weights,)], tokens)
    refused("output_attentions=True", [weights, None], tokens)
    refused("output_attentions=True", None, tokens)
    refused("at least one layer in attentions", (), tokens)
    refused("attentions[0], but got torch.int64", [torch.ones(1, 2, 5, 5).long()], tokens)
    refused("but got (5, 5)", [weights[0, 0]], tokens)
    refused("but got (1, 2, 0, 0)", [weights[:, :, :0, :0]], [])
    refused("2 heads in attentions[1]", [weights, weights[:, :1]], tokens)
    refused("layers in [0, 1), which attentions has, but got [0, 1]", [weights], tokens, layers=[1, 0])
    refused("heads in [0, 2)", [weights], tokens, heads=[-1])
    refused("heads in [0, 2)", [weights], tokens, heads=[])
    for wrong in (float("nan"), float("inf")):
        spoiled = weights.clone()
        spoiled[0, 1, 4, 4] = wrong
        refused("finite weights in attentions[1]", [weights, spoiled], tokens)
    refused("call eval()", [weights / 0.5 + 0.5], tokens)
    refused("weights from 0 to 1", [weights - 1], tokens)
    refused("as many decoder_tokens as cross_attentions[0]", cross_attentions=[weights],
            tokens=tokens, decoder_tokens=tokens[:2])
    refused("but got NoneType", cross_attentions=[weights], tokens=tokens)
    large = torch.zeros(1, 1, 1, 1).expand(1, 2, 4000, 4000)
    refused("at most 20000000 weights, but got 32000000", [large], ["a"] * 4000)


def numbers(browser: Chromium) -> list[str]:
    return browser.value("[...document.querySelectorAll('#keys .weight')].map(e => e.textContent)")


def press_button(browser: Chromium, group: str, index: int) -> None:
    browser.value(f"document.querySelector('#{group}').children[{index}].click()")


def check_kinds(browser: Chromium, folder: pathlib.Path) -> None:
    """Each kind of attention shows its tokens, layers and weights."""
    outputs, tokens, decoder_tokens = encoder_decoder()
    names = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    path = folder / "kinds.html"
    attentions = {name: outputs[name] for name in names}
    show(tokens=tokens, decoder_tokens=decoder_tokens, **attentions).save(path)
    browser.open(path)
    for kind, (name, queries, keys) in enumerate(
        zip(names, (tokens, decoder_tokens, decoder_tokens), (tokens, decoder_tokens, tokens))
    ):
        press_button(browser, "kinds", kind)
        last = len(outputs[name]) - 1
        press_button(browser, "layers", last)
        press_button(browser, "heads", 1)
        for id, wanted in (("queries", queries), ("keys", keys)):
            labels = browser.value(
                f"[...document.querySelectorAll('#{id} bdi')].map(e => e.textContent)"
            )
            assert labels == wanted, (name, labels)
        browser.value("document.querySelectorAll('#queries button')[2].click()")
        row = outputs[name][last][0, 1, 2].tolist()
        for key, number in enumerate(numbers(browser)):
            if name == "decoder_attentions" and key > 2:
                assert number == "", number
            else:
                assert abs(float(number) - row[key]) < 0.0007, (name, key, number)
        said = browser.value("document.querySelector('#said').textContent")
        assert f"Layer {last}, head 1 ({name.split('_')[0]})" in said, said
        count = browser.value("document.querySelectorAll('#overview canvas').length")
        assert count == len(outputs[name]) * outputs[name][0].size(1), count


def check_large(browser: Chromium, folder: pathlib.Path) -> None:
    """Small pictures show the largest of several weights; and eight heads are the most."""
    T = 300
    weights = torch.zeros(1, 9, T, T)
    weights[0, 4, 250, 101] = 1
    path = folder / "large.html"
    show([weights], ["x"] * T).save(path)
    browser.open(path)
    found = browser.value(
        "(() => { const c = document.querySelectorAll('#heads canvas')[4];"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " const at = []; for (let i = 0; i < d.length; i += 4)"
        " if (d[i + 3] > 0 && d[i] < 20) at.push(i / 4);"
        " return [c.width, c.height, at]; })()"
    )
    # Three weights a pixel; causal, since nothing is above the diagonal.
    assert found == [100, 100, [250 // 3 * 100 + 101 // 3]], found
    browser.value("document.querySelector('#several').click()")
    for head in range(1, 9):
        press_button(browser, "heads", head)
    assert browser.value("state.heads.size") == 8
    said = browser.value("document.querySelector('#said').textContent")
    assert said == "At most 8 heads are shown at once.", said


def check_notebook(browser: Chromium, folder: pathlib.Path) -> None:
    """A notebook displays the page, which runs its script and asks for nothing."""
    path = folder / "notebook.html"
    page = show([torch.eye(8).expand(2, 8, 8)], HOSTILE, height=700)
    path.write_text(f"<!DOCTYPE html><body>{page._repr_html_()}", encoding="utf-8")
    before = len(browser.requests)
    browser.open(path)
    box = browser.value(
        "(() => { const b = document.querySelector('iframe').getBoundingClientRect();"
        " return [b.x, b.y, b.width, b.height]; })()"
    )
    assert box[3] == 700, box
    for _ in range(200):
        # Weights of 1 have the darkest color, which only the script draws.
        picture = Picture(browser.screenshot(box))
        if any(bytes((8, 36, 82)) in row for row in picture.rows):
            break
    else:
        raise AssertionError("the frame shows no weights")
    asked = {url for url in browser.requests[before:] if url != path.as_uri()}
    assert asked <= {"about:srcdoc"}, asked


def test_in_chromium(program: str) -> None:
    signal.alarm(SECONDS)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        browser = Chromium(program, f"{name}/profile")
        try:
            check_kinds(browser, folder)
            check_large(browser, folder)
            check_notebook(browser, folder)
        finally:
            browser.close()


torch.manual_seed(1)
test_models_of_one_stack()
test_encoder_and_decoder()
test_hostile_tokens()
test_refused()
if len(sys.argv) > 1:
    test_in_chromium(sys.argv[1])
print("passed")
