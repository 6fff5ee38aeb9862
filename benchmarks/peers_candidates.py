"""The modules that peers.py compares, with their weights and inputs.

Sizes: B batch, T tokens, C channels, H heads, D head dimension.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import pathlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(
    0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts")
)

from torch_attention_reference import classes as book  # noqa: E402

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
        # Its threads would wait for work on the cores that others measure on.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
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
