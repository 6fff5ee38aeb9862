"""attn_implementation="torch_attention" where it is not eager's: dropout, torch.compile,
and what is refused.

    python transformers_rules.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import torch_attention  # noqa: F401: registers itself
from small_models import DECODERS, VOCABULARY, WINDOW, Comparison, assert_close
from torch_attention import _transformers
from torch_attention._mask_rules import noted, rule_of
from torch_attention._transformers import attention_forward


def draw(*heads: int) -> list[Tensor]:
    """Returns tensors (2, heads, 6, 8)."""
    return [torch.randn(2, each, 6, 8) for each in heads]


def refused(text: str, call: Callable[[], object]) -> None:
    try:
        call()
    except ValueError as error:
        assert text in str(error), f"another message: {error}"
    else:
        raise AssertionError(f"no error: {text}")


def test_dropout() -> None:
    """In training weights are dropped and the others grow; not in evaluation."""
    q, k = (torch.randn(1, 1, 64, 8) for _ in range(2))
    v = torch.eye(64)[None, None].requires_grad_()
    module = nn.Identity()
    expected = torch.softmax(q @ k.mT * 8**-0.5, -1)[0, 0]

    def weights(training: bool) -> Tensor:
        torch.manual_seed(3)
        return attention_forward(module.train(training), q, k, v, None, dropout=0.25)[0][0, :, 0]

    torch.testing.assert_close(weights(False), expected)
    dropped = weights(True)
    kept = dropped != 0
    share = kept.float().mean().item()
    assert 0.72 < share < 0.78, f"{share} of the weights are kept"
    torch.testing.assert_close(dropped[kept], expected[kept] / 0.75, rtol=1e-4, atol=1e-6)
    # The backward pass drops the same.
    (gradient,) = torch.autograd.grad(dropped.sum(), v)
    torch.testing.assert_close(
        gradient[0, 0, :, 0], dropped.detach().sum(0), rtol=1e-4, atol=1e-5
    )
    assert torch.equal(dropped, weights(True)), "another result by the same seed"


def test_compiled() -> None:
    """One graph, with our operator for each layer."""
    ids = torch.randint(3, VOCABULARY, (2, 9))
    visible = torch.ones_like(ids)
    visible[1, :3] = 0
    for kind in DECODERS:
        if kind.model_type not in ("llama", "gemma2"):
            continue
        comparison = Comparison(kind.make(1, torch.float32))
        torch.compiler.reset()
        graphs: list[torch.fx.GraphModule] = []

        def keep(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
            graphs.append(graph)
            return graph

        def run(model: nn.Module) -> Tensor:
            compiled = torch.compile(model, fullgraph=True, backend=keep)
            with torch.no_grad():
                return compiled(ids, attention_mask=visible).logits

        ours = comparison.by("torch_attention", run)
        (graph,) = graphs
        calls = [node for node in graph.graph.nodes if "torch_attention.attention" in str(node.target)]
        assert len(calls) == 2, [str(node.target) for node in graph.graph.nodes]
        eager = comparison.by(
            "eager", lambda model: model(ids, attention_mask=visible).logits.detach()
        )
        assert_close(f"compiled {kind.model_type}", ours[visible.bool()], eager[visible.bool()], 1e-5)


def test_masks_are_those_of_eager() -> None:
    """Bool and float masks, of all heads and of each, and a bias."""
    q, k, v = draw(4, 2, 2)
    scale = 8**-0.5
    wide = [x.repeat_interleave(2, 1) for x in (k, v)]
    bias = torch.randn(1, 4, 6, 6)
    for heads in (1, 4):
        seen = torch.rand(2, heads, 6, 6) < 0.6
        seen[..., 0] = True
        added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        for position_bias in (None, bias):
            scores = q @ wide[0].mT * scale + added + (0 if position_bias is None else bias)
            expected = (torch.softmax(scores, -1) @ wide[1]).transpose(1, 2)
            for mask in (seen, added):
                output, weights = attention_forward(
                    nn.Identity(), q, k, v, mask, scaling=scale, position_bias=position_bias
                )
                torch.testing.assert_close(output, expected)
                assert weights is None


def rules_used(model: nn.Module, call: Callable[[], object]) -> list[dict[str, object]]:
    """Returns the arguments of our operator that stand for masks, by layer."""
    used = []
    found = _transformers._rules_of_mask

    def spy(*args: object, **options: object) -> dict[str, object]:
        used.append(found(*args, **options))
        return used[-1]

    model.config._attn_implementation = "torch_attention"
    _transformers._rules_of_mask = spy
    try:
        call()
    finally:
        _transformers._rules_of_mask = found
    return used


def test_rules_of_masks() -> None:
    """Masks that are a rule of positions become that rule, others stay masks."""
    ids = torch.randint(3, VOCABULARY, (2, 9))
    padding = torch.ones_like(ids)
    padding[1, :3] = 0
    causal, window = {"causal": True}, {"causal": True, "window": WINDOW}
    expected = {
        "llama": [causal, causal],
        "mistral": [window, window],
        "gemma3_text": [window, causal],
        "gpt2": [causal, causal],
    }
    for kind in DECODERS:
        if kind.model_type not in expected:
            continue
        model = kind.make(1, torch.float32)
        for guard in (torch.no_grad, torch.inference_mode):
            with guard():
                used = rules_used(model, lambda: model(ids, use_cache=False))
                assert used == expected[kind.model_type], (kind.model_type, used)
                used = rules_used(model, lambda: model(ids, attention_mask=padding))
                assert all(each.keys() == {"mask"} for each in used), (kind.model_type, used)
    # A token after a cache sees all of it.
    model = DECODERS[0].make(1, torch.float32)
    with torch.no_grad():
        cache = model(ids).past_key_values
        assert rules_used(model, lambda: model(ids[:, :1], past_key_values=cache)) == [{}, {}]
        assert rules_used(model, lambda: model(ids[:, :3], past_key_values=cache)) == [causal] * 2


def test_notes_on_masks() -> None:
    """A note holds for the mask on which it was made, as long as nobody changes it."""
    q, k = draw(4, 2)
    rows = torch.arange(6)
    far = rows[:, None] - rows
    for size, seen, rule in (
        (None, far >= 0, {"causal": True}),
        (3, far >= 0, {"causal": True}),
        (3, (far >= 0) & (far < 3), {"causal": True, "window": 3}),
        (4, (far >= 0) & (rows[:, None] // 4 == rows // 4), {"causal": True, "chunk": 4}),
        (2, far.abs() <= 2, {"window": 3, "window_after": 2}),
        (None, far >= 1, None),
        (3, (far >= 0) & (far < 4), None),
    ):
        mask = noted(seen.expand(2, 1, 6, 6), size)
        assert rule_of(mask, q, k) == rule, (size, rule)
        assert rule_of(mask.clone(), q, k) is None
        assert rule_of(mask, q[:, :, :3], k) is None
        output = attention_forward(nn.Identity(), q, k, k, mask)[0]
        expected = attention_forward(nn.Identity(), q, k, k, seen.expand(2, 1, 6, 6).clone())[0]
        torch.testing.assert_close(output, expected)
    mask = noted((far >= 0).expand(2, 1, 6, 6).clone(), 0)
    # A recorded call would keep the rule for other masks.
    others = torch.ones(2, 1, 6, 6, dtype=torch.bool)

    def attend(q: Tensor, mask: Tensor) -> Tensor:
        return attention_forward(nn.Identity(), q, k, k, mask)[0]

    for recorded in (torch.jit.trace(attend, (q, mask)), make_fx(attend)(q, mask)):
        torch.testing.assert_close(recorded(q, others), attend(q, others))
    # Dropout of a layer that is computed again is that of the mask.
    dropping = nn.Identity().train()
    with_mask, with_note = (
        torch.manual_seed(1) and attention_forward(dropping, q, k, k, each, dropout=0.5)[0]
        for each in (mask.clone(), mask)
    )
    assert torch.equal(with_mask, with_note)
    mask[1, :, :, 0] = False
    assert rule_of(mask, q, k) is None
    one = noted((far >= 0).expand(2, 1, 6, 6).clone().index_fill_(3, torch.tensor([1]), False), None)
    assert rule_of(one, q, k) is None


def test_loss_of_a_trainer() -> None:
    """A trainer hands the number of tokens, which is a tensor, to the whole model."""
    ids = torch.randint(3, VOCABULARY, (2, 9))
    ours, eager = Comparison(DECODERS[0].make(1, torch.float32)).both(
        lambda model: model(ids, labels=ids, num_items_in_batch=torch.tensor(16)).loss.detach()
    )
    assert_close("loss", ours, eager, 1e-6)


def test_refused() -> None:
    q, k, v = draw(2, 2, 2)
    module = nn.Identity()
    mask = torch.ones(2, 1, 6, 6, dtype=torch.long)
    refused("bool or float tensor", lambda: attention_forward(module, q, k, v, mask))
    refused("bool or float tensor", lambda: attention_forward(module, q, k, v, object()))
    # Models of sparse attention hand over the keys that an indexer chose.
    refused(
        "no argument 'indices'",
        lambda: attention_forward(module, q, k, v, None, indices=torch.zeros(2, 6, 3)),
    )
    with_sinks = nn.Identity()
    with_sinks.sinks = nn.Parameter(torch.zeros(2))
    refused("as the argument s_aux", lambda: attention_forward(with_sinks, q, k, v, None))
    # transformers computes this model by its own code only.
    config = transformers.NllbMoeConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=16,
        num_experts=2, attn_implementation="torch_attention",
    )
    model = transformers.NllbMoeModel(config).eval()
    ids = torch.ones(1, 3, dtype=torch.long)
    refused("NllbMoeAttention has none", lambda: model(ids, decoder_input_ids=ids))


torch.manual_seed(1)
test_dropout()
test_compiled()
test_masks_are_those_of_eager()
test_rules_of_masks()
test_notes_on_masks()
test_loss_of_a_trainer()
test_refused()
print("passed")
