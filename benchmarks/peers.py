#!/usr/bin/env python3
"""Measures our modules against Python's, by turns in one process.

The candidates have the same weights and inputs, and their outputs and
gradients are compared first. Ours runs in this process on LibTorch's own
threads, by the library libtorch_attention_bench_peers (cmake
-DTORCH_ATTENTION_BENCHMARKS=ON). Candidates that cannot run here (torch.compile
without a compiler, ONNX Runtime that is not installed) are left out with a line
that says why.

    python benchmarks/peers.py build/release/lib --json peers.json

Sizes: B batch, T tokens, C channels, H heads, D head dimension.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(
    0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts")
)

from torch_attention_reference import classes as book  # noqa: E402

# The part of the largest element by which results may differ, as in
# torch-attention bench.
ALLOWED_DIFFERENCE = 1e-4

# The factor of the query and key weights, so that attention is not even.
SHARPER = 2.0

# The ways in which LibTorch records operations, as numbers of peers.cpp.
RECORDINGS = {"no_grad": 0, "inference_mode": 1, "autograd": 2}


class PeersError(Exception):
    """A failure that is reported in one line."""


# --- Cases -----------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Causal self-attention in a module, in float32."""

    name: str
    B: int
    T: int
    C: int = 768
    H: int = 12
    D: int = 64
    dropout: float = 0.0
    backward: bool = False
    wrapper: bool = False
    recording: str = "no_grad"
    series: bool = False

    @property
    def flops(self) -> float:
        """Returns the operations that the result needs, of visible scores only.

        For attention a backward pass counts as five products and a forward pass
        as two, for a projection as two and as one.
        """
        b, t, c, e = self.B, self.T, self.C, self.H * self.D
        attention = 2 * b * e * t * (t + 1) / 2
        projections = 2 * b * t * e * (3 * c + (0 if self.wrapper else e))
        if self.backward:
            return 7 * attention + 3 * projections
        return 2 * attention + projections


WORKS = [
    Work("module B8 T1024", 8, 1024),
    Work("module B1 T4096", 1, 4096),
    Work("module B8 T128", 8, 128),
    Work("module B32 T16", 32, 16),
    Work(
        "module forward+backward B4 T1024",
        4,
        1024,
        backward=True,
        recording="autograd",
    ),
    Work(
        "module forward+backward B4 T1024 p0.1",
        4,
        1024,
        backward=True,
        dropout=0.1,
        recording="autograd",
    ),
    Work("wrapper B8 T1024", 8, 1024, wrapper=True),
    *(
        Work(f"module B2 T6 3to2 {r}", 2, 6, C=3, H=2, D=1, recording=r)
        for r in ("autograd", "inference_mode")
    ),
    *(
        Work(f"series module B1 T{t}", 1, t, series=True)
        for t in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    ),
]

# The plain sequence keeps several (H, T, T) tensors.
LARGEST_EAGER = 4096


@dataclass
class Data:
    """The module and the tensors that all candidates for a work share."""

    work: Work
    module: nn.Module
    x: Tensor
    g: Tensor | None


def draw(work: Work) -> Data:
    torch.manual_seed(123)
    e = work.H * work.D
    # The book's classes keep a (T, T) mask: a small one where they do not run.
    context_length = work.T if work.T <= LARGEST_EAGER else 1
    kind = book.MultiHeadAttention
    d_out = e
    if work.wrapper:
        kind = book.MultiHeadAttentionWrapper
        d_out = work.D
    module = kind(work.C, d_out, context_length, work.dropout, work.H)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "W_query" in name or "W_key" in name:
                parameter.mul_(SHARPER)
    x = torch.randn(work.B, work.T, work.C)
    g = torch.randn(work.B, work.T, e) if work.backward else None
    return Data(work, module, x, g)


# --- Candidates ------------------------------------------------------------


class SdpaAttention(nn.Module):
    """Three linear layers, LibTorch's fused attention, and the fourth."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        e = work.H * work.D
        self.num_heads = work.H
        self.p = work.dropout
        self.W_query = nn.Linear(work.C, e, bias=False)
        self.W_key = nn.Linear(work.C, e, bias=False)
        self.W_value = nn.Linear(work.C, e, bias=False)
        self.out_proj = nn.Linear(e, e)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (
            linear(x).view(b, t, self.num_heads, -1).transpose(1, 2)
            for linear in (self.W_query, self.W_key, self.W_value)
        )
        p = self.p if self.training else 0.0
        context = F.scaled_dot_product_attention(
            q, k, v, dropout_p=p, is_causal=True
        )
        return self.out_proj(context.transpose(1, 2).reshape(b, t, -1))


class PackedAttention(nn.Module):
    """torch.nn.MultiheadAttention, causal and without the weights."""

    def __init__(self, work: Work, source: nn.Module) -> None:
        super().__init__()
        e = work.H * work.D
        self.inner = nn.MultiheadAttention(
            e, work.H, dropout=work.dropout, batch_first=True
        )
        mask = nn.Transformer.generate_square_subsequent_mask(work.T)
        self.register_buffer("mask", mask)
        with torch.no_grad():
            weights = (source.W_query, source.W_key, source.W_value)
            packed = torch.cat([linear.weight for linear in weights])
            self.inner.in_proj_weight.copy_(packed)
            self.inner.in_proj_bias.zero_()
            self.inner.out_proj.load_state_dict(source.out_proj.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(
            x, x, x, need_weights=False, attn_mask=self.mask, is_causal=True
        )[0]


class Candidate:
    """A Python module that is run on the data's input."""

    def __init__(self, name: str, module: nn.Module, data: Data) -> None:
        self.name = name
        self.module = module
        self.recording = data.work.recording
        self.g = data.g
        self.x = data.x.detach().requires_grad_(data.g is not None)

    def call(self) -> Tensor:
        if self.g is None:
            return self.module(self.x)
        self.x.grad = None
        self.module.zero_grad()
        y = self.module(self.x)
        y.backward(self.g)
        return y

    def time(self, calls: int) -> float:
        """Returns the seconds that the calls take."""
        with record(self.recording):
            start = time.perf_counter()
            for _ in range(calls):
                self.call()
            return time.perf_counter() - start

    def results(self) -> list[Tensor]:
        """Returns the output, and the gradients of input and weights."""
        with record(self.recording):
            y = self.call()
        if self.g is None:
            return [y]
        return [y, self.x.grad, *self.weight_gradients()]

    def weight_gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.module.parameters()]

    def train(self, on: bool) -> None:
        self.module.train(on)


class PackedCandidate(Candidate):
    """PackedAttention, with gradients in the order of the others."""

    def weight_gradients(self) -> list[Tensor]:
        inner = self.module.inner
        return [
            *inner.in_proj_weight.grad.chunk(3),
            inner.out_proj.weight.grad,
            inner.out_proj.bias.grad,
        ]


class OnnxCandidate:
    """The SDPA module in ONNX Runtime; forward only."""

    name = "ONNX Runtime"

    def __init__(self, data: Data, folder: pathlib.Path) -> None:
        import onnxruntime

        path = folder / "module.onnx"
        module = sdpa_module(data).eval()
        torch.onnx.export(
            module, (data.x,), str(path), input_names=["x"], dynamo=False
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.feed = {"x": data.x.numpy()}

    def time(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self.session.run(None, self.feed)
        return time.perf_counter() - start

    def results(self) -> list[Tensor]:
        return [torch.from_numpy(self.session.run(None, self.feed)[0])]

    def train(self, on: bool) -> None:
        """Does nothing: there is no training mode."""


class PeersShape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in "BTCEH"),
        ("wrapper", ctypes.c_int64),
        ("reference_kernel", ctypes.c_int64),
        ("dropout", ctypes.c_double),
    ]


def pointers(tensors: list[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


class OurCandidate:
    """Our module, by the C++ library in this process."""

    name = "ours"

    def __init__(self, library: ctypes.CDLL, data: Data) -> None:
        work = data.work
        self.library = library
        self.data = data  # its memory is read where it is
        self.recording = RECORDINGS[work.recording]
        e = work.H * work.D
        shape = PeersShape(
            work.B, work.T, work.C, e, work.H, work.wrapper, 0, work.dropout
        )
        weights = [p.detach() for p in data.module.parameters()]
        self.session = library.make_session(
            ctypes.byref(shape),
            pointers(weights),
            ctypes.c_void_p(data.x.data_ptr()),
            ctypes.c_void_p(0 if data.g is None else data.g.data_ptr()),
        )
        if not self.session:
            raise PeersError("our module could not be made")
        self.session = ctypes.c_void_p(self.session)

    def __del__(self) -> None:
        if getattr(self, "session", None):
            self.library.free_session(self.session)

    def time(self, calls: int) -> float:
        seconds = self.library.time_session(
            self.session, ctypes.c_int64(calls), ctypes.c_int64(self.recording)
        )
        if seconds < 0:
            raise PeersError("our module failed")
        return seconds

    def results(self) -> list[Tensor]:
        work = self.data.work
        y = torch.empty(work.B, work.T, work.H * work.D)
        gradients = []
        if work.backward:
            leaves = [self.data.x, *self.data.module.parameters()]
            gradients = [torch.empty_like(leaf) for leaf in leaves]
        status = self.library.run_session(
            self.session,
            ctypes.c_int64(self.recording),
            ctypes.c_void_p(y.data_ptr()),
            pointers(gradients),
        )
        if status < 0:
            raise PeersError("our module failed")
        return [y, *gradients]

    def train(self, on: bool) -> None:
        self.library.train_session(self.session, ctypes.c_int64(on))


def load_library(folder: str) -> ctypes.CDLL:
    found = sorted(
        pathlib.Path(folder).glob("libtorch_attention_bench_peers*")
    )
    if not found:
        raise PeersError(f"{folder} has no libtorch_attention_bench_peers")
    library = ctypes.CDLL(str(found[0]))
    library.make_session.restype = ctypes.c_void_p
    library.time_session.restype = ctypes.c_double
    library.run_session.restype = ctypes.c_double
    library.free_session.restype = None
    library.train_session.restype = None
    return library


def sdpa_module(data: Data) -> SdpaAttention:
    module = SdpaAttention(data.work)
    state = data.module.state_dict()
    state.pop("mask")
    module.load_state_dict(state)
    return module


def compiled(data: Data) -> Candidate:
    """Returns the SDPA module, compiled for this shape by its first call."""
    torch._dynamo.reset()
    module = torch.compile(sdpa_module(data), dynamic=False)
    candidate = Candidate("torch.compile", module, data)
    candidate.train(False)
    candidate.results()
    return candidate


class LeftOut:
    """Prints once for each candidate why it is left out."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def note(self, name: str, reason: object) -> None:
        lines = str(reason).strip().splitlines() or [type(reason).__name__]
        if name not in self.reasons:
            self.reasons[name] = lines[0]
            print(f"{name} is left out: {lines[0]}", flush=True)


def make_candidates(
    data: Data, library: ctypes.CDLL, folder: pathlib.Path, left_out: LeftOut
) -> list[Any]:
    """Returns the candidates of a work, ours first."""
    work = data.work
    candidates: list[Any] = [OurCandidate(library, data)]
    if work.T <= LARGEST_EAGER:
        candidates.append(Candidate("Python eager", data.module, data))
    if work.wrapper:
        return candidates
    candidates.append(Candidate("SDPA module", sdpa_module(data), data))
    try:
        candidates.append(compiled(data))
    except Exception as error:  # whatever a compiler may say
        left_out.note("torch.compile", error)
    if work.C == work.H * work.D and work.T <= LARGEST_EAGER:
        module = PackedAttention(work, data.module)
        candidates.append(
            PackedCandidate("nn.MultiheadAttention", module, data)
        )
    if importlib.util.find_spec("onnxruntime") is None:
        left_out.note("ONNX Runtime", "onnxruntime is not installed")
    elif not work.backward:
        try:
            candidates.append(OnnxCandidate(data, folder))
        except Exception as error:  # whatever the exporter may say
            left_out.note("ONNX Runtime", error)
    return candidates


@contextlib.contextmanager
def record(recording: str) -> Iterator[None]:
    guards = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autograd": torch.enable_grad,
    }
    with guards[recording]():
        yield


# --- Measuring -------------------------------------------------------------


@dataclass(frozen=True)
class Effort:
    seconds: float
    least_rounds: int
    most_rounds: int
    sample_seconds: float = 5e-3


FULL = Effort(8, 7, 31)
QUICK = Effort(2, 3, 15)


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[round(q * (len(values) - 1))]


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": quantile(values, 0.5),
        "p10": quantile(values, 0.1),
        "p90": quantile(values, 0.9),
    }


def ratio(theirs: list[float], ours: list[float]) -> dict[str, float]:
    """Returns the medians' ratio, with p10 and p90 of the rounds' ratios."""
    result = spread([t / o for t, o in zip(theirs, ours, strict=True)])
    result["median"] = quantile(theirs, 0.5) / quantile(ours, 0.5)
    return result


def sample(timer: Callable[[int], float], seconds: float) -> tuple[int, float]:
    """Returns a number of calls that take about `seconds`, and their time."""
    calls = 1
    elapsed = timer(calls)
    while elapsed < seconds / 2 and calls < 2**20:
        growth = seconds / max(elapsed, 1e-9)
        calls = int(calls * min(max(growth, 2), 32))
        elapsed = timer(calls)
    return calls, elapsed


def interleave(
    timers: list[Callable[[int], float]], effort: Effort
) -> list[list[float]]:
    """Returns the seconds of one call, by timer and round.

    Each round begins with another timer.
    """
    start = time.perf_counter()
    samples = [sample(timer, effort.sample_seconds) for timer in timers]
    seconds = [[elapsed / calls] for calls, elapsed in samples]
    for turn in range(1, effort.most_rounds):
        is_late = time.perf_counter() - start > effort.seconds
        if turn >= effort.least_rounds and is_late:
            break
        for j in range(len(timers)):
            i = (j + turn) % len(timers)
            calls = samples[i][0]
            seconds[i].append(timers[i](calls) / calls)
    return seconds


def status_bytes(name: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    return -1


def peak_resident(run: Callable[[], Any]) -> int:
    """Returns the bytes of the run's peak of memory beyond that before it."""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return -1
    before = status_bytes("VmRSS")
    run()
    return max(status_bytes("VmHWM") - before, 0)


def difference(theirs: list[Tensor], ours: list[Tensor]) -> float:
    """Returns the largest difference, relative to the tensor's largest element."""
    if len(theirs) != len(ours):
        raise PeersError("candidates give different numbers of gradients")
    largest = 0.0
    for a, b in zip(theirs, ours, strict=True):
        distance = (a.double() - b.double()).abs().max().item()
        relative = distance / b.abs().max().item()
        is_nan = relative != relative
        largest = max(largest, float("inf") if is_nan else relative)
    return largest


class Roof:
    """LibTorch's sgemm and reading of memory, on this number of threads."""

    def __init__(self) -> None:
        self.size = 2048
        self.a = torch.rand(self.size, self.size)
        self.b = torch.rand(self.size, self.size)
        self.c = torch.empty(self.size, self.size)

    @property
    def flops(self) -> float:
        return 2.0 * self.size**3

    def time(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            torch.mm(self.a, self.b, out=self.c)
        return time.perf_counter() - start

    def describe(self) -> dict[str, Any]:
        effort = Effort(1, 5, 9)
        x = torch.ones(1 << 26)
        y = torch.ones(1 << 26)
        z = torch.ones(1 << 26)

        def read(calls: int) -> float:
            start = time.perf_counter()
            for _ in range(calls):
                x.sum()
            return time.perf_counter() - start

        def triad(calls: int) -> float:
            start = time.perf_counter()
            for _ in range(calls):
                torch.add(x, y, alpha=2, out=z)
            return time.perf_counter() - start

        def rates(timer: Callable[[int], float], amount: float) -> Any:
            seconds = interleave([timer], effort)[0]
            return spread([amount / s for s in seconds])

        return {
            "product": f"torch.mm, {self.size} rows",
            "sgemm_flops_per_second": rates(self.time, self.flops),
            "read_bytes_per_second": rates(read, x.nbytes),
            "triad_bytes_per_second": rates(triad, 3 * x.nbytes),
        }


def measure(
    data: Data, candidates: list[Any], roof: Roof, effort: Effort
) -> dict[str, Any]:
    work = data.work
    case: dict[str, Any] = {
        "name": work.name,
        **{name: getattr(work, name) for name in "BTCHD"},
        "dropout": work.dropout,
        "window": None,
        "backward": work.backward,
        "recording": work.recording,
        "unit": "FLOP",
        "amount": work.flops,
        "problem": None,
        "candidates": [],
    }
    differences = []
    ours: list[Tensor] = []
    for candidate in candidates:
        candidate.train(False)
        results = candidate.results()
        ours = ours or results
        differences.append(difference(results, ours))
        candidate.train(work.dropout > 0)
    for candidate, distance in zip(candidates, differences, strict=True):
        if not distance <= ALLOWED_DIFFERENCE:
            case["problem"] = (
                f"{candidate.name} differs from ours by {distance:.1e} of the "
                "largest element"
            )
            return case
    del ours, results

    def once(candidate: Any) -> Callable[[], Any]:
        return lambda: candidate.time(1)

    peaks = [peak_resident(once(candidate)) for candidate in candidates]
    timers = [candidate.time for candidate in candidates]
    seconds = interleave([*timers, roof.time], effort)
    roof_rate = roof.flops / quantile(seconds[-1], 0.5)
    case["roof_per_second"] = roof_rate
    case["rounds"] = len(seconds[0])
    for i, candidate in enumerate(candidates):
        rate = work.flops / quantile(seconds[i], 0.5)
        case["candidates"].append(
            {
                "name": candidate.name,
                "seconds": spread(seconds[i]),
                "ratio": ratio(seconds[i], seconds[0]) if i else None,
                "per_second": rate,
                "share_of_roof": rate / roof_rate,
                "peak_resident_bytes": peaks[i],
                "difference": differences[i],
            }
        )
    return case


# --- Output ----------------------------------------------------------------


def cpu_info(name: str) -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def describe_machine() -> dict[str, Any]:
    flags = set(cpu_info("flags").split())
    names = "avx2 fma avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16"
    return {
        "cpu": cpu_info("model name"),
        "instruction_sets": [n for n in names.split() if n in flags],
        "libtorch_instruction_set": torch.backends.cpu.get_cpu_capability(),
        "libtorch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def time_text(seconds: float) -> str:
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds:.2f} s"


def print_head(report: dict[str, Any]) -> None:
    machine, roof = report["machine"], report["roof"]
    sets = " ".join(machine["instruction_sets"])
    print(f"{machine['cpu']}, {machine['cores']} cores: {sets}")
    print(f"PyTorch {machine['libtorch']}, Python {machine['python']}", end="")
    print(f", {machine['threads']} threads, float32")
    sgemm = roof["sgemm_flops_per_second"]["median"] / 1e9
    read = roof["read_bytes_per_second"]["median"] / 1e9
    triad = roof["triad_bytes_per_second"]["median"] / 1e9
    print(f"roof: sgemm {sgemm:.1f} GFLOP/s, ", end="")
    print(f"reading {read:.1f} GB/s, triad {triad:.1f} GB/s\n")
    print(f"{'':26}{'time':>12}  {'its time / ours':24}", end="")
    print(f"{'GFLOP/s':>9}{'of roof':>9}{'peak memory':>13}", flush=True)


def print_case(case: dict[str, Any]) -> None:
    print(case["name"])
    if case["problem"]:
        print(f"  no figures: {case['problem']}", flush=True)
        return
    for row in case["candidates"]:
        text = ""
        if row["ratio"]:
            r = row["ratio"]
            text = f"{r['median']:6.2f}  ({r['p10']:.2f} - {r['p90']:.2f})"
        print(f"  {row['name']:24}", end="")
        print(f"{time_text(row['seconds']['median']):>12}  {text:24}", end="")
        print(f"{row['per_second'] / 1e9:9.4g}", end="")
        print(f"{row['share_of_roof']:9.3f}", end="")
        print(f"{row['peak_resident_bytes'] / 1e6:10.1f} MB", flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", help="folder with the built libraries")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--series", action="store_true", help="also by T, for plots"
    )
    parser.add_argument(
        "--only", default="", help="only cases with this text in their name"
    )
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--threads", type=int, help="default: PyTorch's number")
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    works = [
        work
        for work in WORKS
        if options.only in work.name and (options.series or not work.series)
    ]
    if not works:
        raise PeersError(f'no case has "{options.only}" in its name')
    if options.list:
        print("\n".join(work.name for work in works))
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    library = load_library(options.libraries)
    roof = Roof()
    left_out = LeftOut()
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "roof": roof.describe(),
        "quick": options.quick,
        "left_out": left_out.reasons,
        "cases": [],
    }
    print_head(report)
    effort = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        for work in works:
            data = draw(work)
            candidates = make_candidates(
                data, library, pathlib.Path(folder), left_out
            )
            report["cases"].append(measure(data, candidates, roof, effort))
            print_case(report["cases"][-1])
            del data, candidates
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=2))
    return 1 if any(case["problem"] for case in report["cases"]) else 0


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return run(options)
    except (PeersError, OSError) as error:
        print(f"peers.py: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
