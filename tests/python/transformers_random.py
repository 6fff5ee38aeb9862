"""attn_implementation="torch_attention" is eager's, in random models and batches.

    python transformers_random.py [--cases N] [--seed S] [--case I]

Draws a model type, sizes, a mask, and what is done: outputs, gradients, generation
with a dynamic or static cache, a prompt in chunks, weights. Rows of padding are
not compared: eager gives them the mean of all values, ours gives zeros.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import torch_attention  # noqa: F401: registers itself
from small_models import DECODERS, VOCABULARY, Comparison, Kind, assert_close

# Relative to the largest output. In double, a model's own float32 parts differ not
# at all; what is left is rounding of the softmax, which some compute in float32.
RTOL = {torch.float64: 1e-6, torch.float32: 2e-5, torch.bfloat16: 6e-2}


class Case:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        draw = self.draw
        self.kind: Kind = draw.choice(DECODERS)
        self.dtype = draw.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16])
        self.batch = draw.randint(1, 3)
        self.length = draw.choice([1, 2, draw.randint(3, 12), draw.randint(13, 70)])
        torch.manual_seed(seed)
        self.ids = torch.randint(3, VOCABULARY, (self.batch, self.length))
        self.task = draw.choice(sorted(TASKS))
        self.mask_kind = draw.choice(["none", "left", "right", "bool", "float", "packed"])
        if self.task in ("generate", "static", "chunks") and self.mask_kind != "none":
            self.mask_kind = "left"
        if self.mask_kind == "packed" and not self.kind.packs:
            self.mask_kind = "none"
        if self.mask_kind == "left" and self.dtype == torch.float64:
            # Eager gives NaN there: its mask is minus infinity in the float32 of softmax.
            self.dtype = torch.float32
        self.comparison = Comparison(self.kind.make(seed, self.dtype))
        self.rtol = RTOL[self.dtype]
        self.inputs, self.visible = self.draw_mask()

    def __str__(self) -> str:
        return (
            f"{self.task} of {self.kind.model_type}, {self.dtype}, {self.batch} x "
            f"{self.length}, mask {self.mask_kind}"
        )

    def draw_mask(self) -> tuple[dict[str, Tensor], Tensor]:
        """Returns arguments of the model, and which rows are no padding."""
        shape = (self.batch, self.length)
        visible = torch.ones(shape, dtype=torch.bool)
        if self.mask_kind in ("left", "right"):
            for row in visible:
                hidden = self.draw.randint(0, self.length - 1)
                row[:hidden] = False
                if self.mask_kind == "right":
                    row.copy_(row.flip(0))
            return {"attention_mask": visible.long()}, visible
        if self.mask_kind in ("bool", "float"):
            pairs = (torch.rand(self.batch, 1, self.length, self.length) < 0.7).tril()
            pairs |= torch.eye(self.length, dtype=torch.bool)
            if self.mask_kind == "bool" and self.task != "weights":
                return {"attention_mask": pairs}, visible
            lowest = torch.finfo(self.dtype).min
            mask = torch.zeros(pairs.shape, dtype=self.dtype).masked_fill(~pairs, lowest)
            return {"attention_mask": mask}, visible
        if self.mask_kind == "packed":
            cut = self.draw.randint(1, self.length)
            positions = torch.cat([torch.arange(cut), torch.arange(self.length - cut)])
            return {"position_ids": positions.expand(shape), "use_cache": False}, visible
        return {}, visible

    def inputs_for(self, model: nn.Module) -> dict[str, Tensor]:
        """Eager adds masks, so that it takes no bool mask of queries and keys."""
        mask = self.inputs.get("attention_mask")
        if self.mask_kind == "bool" and mask.dtype == torch.bool:
            if model.config._attn_implementation == "eager":
                lowest = torch.finfo(self.dtype).min
                added = torch.zeros(mask.shape, dtype=self.dtype).masked_fill(~mask, lowest)
                return {**self.inputs, "attention_mask": added}
        return self.inputs

    def check(self) -> float:
        return TASKS[self.task](self)


def outputs(case: Case) -> float:
    def run(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(case.ids, **case.inputs_for(model)).logits

    ours, eager = case.comparison.both(run)
    return assert_close("logits", ours[case.visible], eager[case.visible], case.rtol)


def gradients(case: Case) -> float:
    """Training: the loss of the rows that are no padding."""
    factors = torch.randn(case.batch, case.length, VOCABULARY, dtype=case.dtype)
    factors = factors * case.visible[..., None]

    def run(model: nn.Module) -> list[Tensor]:
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        logits = model(case.ids, **case.inputs_for(model)).logits
        trained = [p for p in model.parameters() if p.requires_grad]
        # Zeros times the numbers of rows of padding, which are finite.
        gradients = torch.autograd.grad(
            (logits * factors).sum(), trained, allow_unused=True
        )
        return [g for g in gradients if g is not None]

    ours, eager = case.comparison.both(run)
    # All parameters together: some gradients are sums that nearly cancel.
    flat = [torch.cat([g.flatten() for g in each]) for each in (ours, eager)]
    return assert_close("gradients", *flat, 4 * case.rtol)


def generation(case: Case, **options: Any) -> float:
    """The scores of each step; tokens follow them."""
    length = 6
    forced = torch.randint(3, VOCABULARY, (case.batch, length))

    def force(ids: Tensor, scores: Tensor) -> Tensor:
        # Rounding must not choose between tokens that are nearly equal.
        kept = scores.clone()
        kept.scatter_(1, forced[:, ids.shape[1] - case.length, None], 1e9)
        return kept

    def run(model: nn.Module) -> Tensor:
        generated = model.generate(
            case.ids,
            attention_mask=case.visible.long(),
            max_new_tokens=length,
            do_sample=False,
            logits_processor=transformers.LogitsProcessorList([force]),
            output_logits=True,
            return_dict_in_generate=True,
            disable_compile=True,
            **options,
        )
        return torch.stack(generated.logits)

    ours, eager = case.comparison.both(run)
    return assert_close("logits of steps", ours, eager, case.rtol)


def static(case: Case) -> float:
    return generation(case, cache_implementation="static")


def chunks(case: Case) -> float:
    """A prompt in two calls with a cache: the second has keys before its queries."""
    cut = case.draw.randint(0, case.length - 1)

    def run(model: nn.Module) -> Tensor:
        visible = case.visible.long()
        cache = transformers.DynamicCache(config=model.config)
        parts = []
        with torch.no_grad():
            for begin, end in ((0, cut), (cut, case.length)):
                if begin < end:
                    result = model(
                        case.ids[:, begin:end],
                        attention_mask=visible[:, :end],
                        past_key_values=cache,
                    )
                    parts.append(result.logits)
        return torch.cat(parts, 1)

    ours, eager = case.comparison.both(run)
    return assert_close("logits of chunks", ours[case.visible], eager[case.visible], case.rtol)


def weights(case: Case) -> float:
    """output_attentions gives eager's weights."""

    def run(model: nn.Module) -> Tensor:
        with torch.no_grad():
            result = model(case.ids, output_attentions=True, **case.inputs_for(model))
        return torch.stack(result.attentions).transpose(2, 3)

    ours, eager = case.comparison.both(run)
    rows = [x[:, case.visible] for x in (ours, eager)]
    return assert_close("weights", *rows, 4 * case.rtol)


TASKS: dict[str, Callable[[Case], float]] = {
    "chunks": chunks,
    "generate": generation,
    "gradients": gradients,
    "outputs": outputs,
    "static": static,
    "weights": weights,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="only this case")
    arguments = parser.parse_args()
    numbers = [arguments.case] if arguments.case is not None else range(arguments.cases)
    worst: Counter[str] = Counter()
    done: Counter[str] = Counter()
    failed = 0
    for number in numbers:
        case = Case(1_000_003 * arguments.seed + number)
        try:
            difference = case.check()
        except Exception as error:  # noqa: BLE001: all of them are shown
            print(f"FAILED --seed {arguments.seed} --case {number}: {case}: {error!r}")
            failed += 1
            continue
        key = f"{case.task} in {str(case.dtype)[6:]}"
        worst[key] = max(worst[key], difference)
        done[case.task] += 1
        done[case.mask_kind] += 1
        done[case.kind.model_type] += 1
    for key in sorted(worst):
        print(f"{key:24} {worst[key]:.1e}")
    print(dict(done))
    print(f"{failed} of {len(numbers)} cases failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
