"""One case of a class that the library mirrors: a pair of files.

  NAME.pt           the traced module (TorchScript) before training
  NAME.expected.pt  its sample values, see torch_attention_reference.recording

The random stream is seeded twice with the same seed: before the module is
built and before its three training steps.
"""

from __future__ import annotations

import io
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_attention_reference import ExportError
from torch_attention_reference.archives import repacked, saved, scripted
from torch_attention_reference.classes import CLASSES, keywords
from torch_attention_reference.recording import draw, record

from ..script_class import of_a_script

for cls in CLASSES.values():
    of_a_script(cls)

DTYPE_NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
}


@dataclass(frozen=True)
class Case:
    """The options of a case; a class ignores those that it does not take."""

    kind: str
    d_in: int
    d_out: int
    tokens: int
    context_length: int = 0
    num_heads: int = 1
    dropout: float = 0.0
    qkv_bias: bool = False
    causal: bool = True
    dtype: torch.dtype = torch.float32
    batch: int = 2
    training: bool = False
    seed: int = 123

    @property
    def arguments(self) -> dict[str, Any]:
        """Returns the constructor's keywords."""
        return {name: getattr(self, name) for name in keywords(self.kind)}

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the input's shape: (T, d_in) or (B, T, d_in)."""
        unbatched = (self.tokens, self.d_in)
        if "context_length" not in self.arguments:
            return unbatched
        return (self.batch, *unbatched)

    @property
    def name(self) -> str:
        """Returns a name like mha-h4-8to12-bias-causal-bf16-T7of16-train-p0.1."""
        taken = self.arguments
        tokens = f"T{self.tokens}"
        if "context_length" in taken:
            tokens += f"of{self.context_length}"
        parts = [
            self.kind,
            f"h{self.num_heads}" if "num_heads" in taken else "",
            f"{self.d_in}to{self.d_out}",
            "qkv_bias" in taken and ("bias" if self.qkv_bias else "nobias"),
            "causal" in taken and ("causal" if self.causal else "unmasked"),
            DTYPE_NAMES[self.dtype],
            tokens,
            "train" if self.training else "eval",
            f"p{self.dropout:g}" if self.dropout else "",
        ]
        return "-".join(part for part in parts if part)


def write_all(folder: Path, cases: list[Case]) -> None:
    """Writes every case and says how many and how long it took."""
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, case) in enumerate(unique_names(cases), start=1):
        write_case(folder, name, case)
        if sys.stdout.isatty():
            print(f"\r{number} of {len(cases)} cases", end="", flush=True)
    seconds = time.monotonic() - start
    end = "\r" if sys.stdout.isatty() else ""
    print(f"{end}{len(cases)} cases in {seconds:.1f} s")


def unique_names(cases: Iterable[Case]) -> Iterator[tuple[str, Case]]:
    """Yields each case with its name, numbered where it came before."""
    seen: Counter[str] = Counter()
    for case in cases:
        seen[case.name] += 1
        again = seen[case.name]
        yield case.name if again == 1 else f"{case.name}-{again}", case


def write_case(folder: Path, name: str, case: Case) -> None:
    """Builds the module of a case, draws its input and writes both files."""
    torch.manual_seed(case.seed)
    module = CLASSES[case.kind](**case.arguments)
    module.to(case.dtype).train(case.training)

    # Not the stream that the weights came from.
    generator = torch.Generator().manual_seed(case.seed + 1)
    x = draw(case.shape, case.dtype, generator)
    write_module(folder, name, module, case.arguments, x, generator, case.seed)


def write_module(
    folder: Path,
    name: str,
    module: nn.Module,
    arguments: dict[str, Any],
    x: Tensor,
    generator: torch.Generator,
    seed: int,
) -> dict[str, Any]:
    """Writes both files; leaves the module trained. Returns sample values."""
    archive = trace(module, x, arguments.get("context_length"), generator)
    config = {"class": type(module).__name__, **arguments}
    expected = record(module, config, x, generator, seed)
    (folder / f"{name}.pt").write_bytes(archive)
    (folder / f"{name}.expected.pt").write_bytes(saved(expected))
    return expected


def trace(
    module: nn.Module,
    x: Tensor,
    context_length: int | None,
    generator: torch.Generator,
) -> bytes:
    """Returns the module as a TorchScript archive, general in B and T."""
    traced = torch.jit.trace(module, (x,), check_trace=False)
    archive = repacked(scripted(traced))

    # The module and its trace must agree for other B and T than those traced.
    *batch, t, d_in = x.shape
    other_t = t + 1 if context_length is None else t % context_length + 1
    other_shape = (*(b + 1 for b in batch), other_t, d_in)
    other = draw(other_shape, x.dtype, generator)
    loaded = torch.jit.load(io.BytesIO(archive))
    outputs = []
    for forward in (module, loaded):
        torch.manual_seed(0)  # the same dropout in both
        with torch.no_grad():
            outputs.append(forward(other))
    torch.testing.assert_close(outputs[1], outputs[0])
    if loaded.training != module.training:
        raise ExportError("the archive has lost the module's mode")
    return archive
