#!/usr/bin/env python3
"""Exports the attention of any Python module for TorchAttention.

Writes the weights as a safetensors file (with a CRC-32 for each tensor, which
our reader checks), as a TorchScript archive, or by torch.save. With
--input-shape it also records a sample input, the output, gradients and a few
training steps in NAME.expected.pt beside the file, for `torch-attention
verify`, if the module is one of those that the library mirrors.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_attention_reference import ExportError, first_line, safetensors_file
from torch_attention_reference.archives import (
    repacked,
    saved,
    scripted,
    state_dict_in,
    write_file,
)
from torch_attention_reference.classes import CLASSES
from torch_attention_reference.recording import (
    SEED_LIMIT,
    TOLERANCES,
    draw,
    plain,
    record,
)

EXAMPLES = """\
examples:
  # The whole module that model.py's function build() returns:
  scripts/export_weights.py model:build attention.safetensors

  # One layer of a trained model, with sample values for verify:
  scripts/export_weights.py gpt:GPTModel layer3.safetensors \\
      --checkpoint gpt.pth --submodule trf_blocks.3.att --input-shape 1,8,768
  torch-attention verify layer3.safetensors

  # As a TorchScript archive, in bfloat16:
  scripts/export_weights.py gpt:GPTModel layer3.pt --format torchscript \\
      --submodule trf_blocks.3.att --input-shape 1,8,768 --dtype bfloat16
"""

FORMATS = ("safetensors", "torchscript", "torch")

# Without --format. A .pt file can be either of the other two.
FORMAT_OF_SUFFIX = {".safetensors": "safetensors", ".pth": "torch"}

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


# --- The module ------------------------------------------------------------


def build(spec: str, seed: int) -> nn.Module:
    """Returns the module of MODULE:FACTORY, in evaluation mode.

    FACTORY is a class or function that takes no arguments, or a module.
    """
    name, separator, path = spec.partition(":")
    if not (name and separator and path):
        raise ExportError(f"expected MODULE:FACTORY, but got {spec!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        factory: Any = importlib.import_module(name)
    except Exception as error:  # a module can raise anything
        raise failure(f"importing {name} failed", error) from error
    for attribute in path.split("."):
        if not hasattr(factory, attribute):
            raise ExportError(f"{name} has no {path!r}")
        factory = getattr(factory, attribute)

    module = factory
    if not isinstance(module, nn.Module):
        if not callable(factory):
            kind = type(factory).__name__
            raise ExportError(
                f"{spec} is neither callable nor a module: {kind}"
            )
        torch.manual_seed(seed)
        try:
            module = factory()
        except Exception as error:
            raise failure(f"{spec}() failed", error) from error
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise ExportError(f"{spec} gives no torch.nn.Module: {kind}")
    return module.eval()


def failure(what: str, error: BaseException) -> ExportError:
    return ExportError(f"{what}: {type(error).__name__}: {first_line(error)}")


def load_checkpoint(module: nn.Module, path: Path) -> None:
    """Loads a state dict strictly, from torch.save or safetensors."""
    if not path.is_file():
        raise ExportError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        state, _ = safetensors_file.read(path)
    else:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise failure(f"{path} cannot be read", error) from error
        state = state_dict_in(state, path)
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ExportError(f"{path} does not fit: {error}") from error


def submodule(module: nn.Module, path: str) -> nn.Module:
    """Returns the module at a dotted path; "" for the module itself."""
    reached: list[str] = []
    for name in path.split(".") if path else []:
        children = dict(module.named_children())
        if name not in children:
            place = f"the submodule {'.'.join(reached)}" if reached else "it"
            names = ", ".join(children) or "none"
            raise ExportError(
                f"there is no submodule {path}: {place} has no {name!r}."
                f" Its children: {names}"
            )
        module = children[name]
        reached.append(name)
    return module


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Copies all tensors; those that were one tensor stay one."""
    copies: dict[tuple[Any, ...], Tensor] = {}
    state = {}
    for key, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise ExportError(f"{key} is not a tensor, but {kind}")
        if tensor.is_meta:
            raise ExportError(f"{key} has no values: it is on the meta device")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ExportError(f"{key} is not a dense tensor")
        same = (
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )
        if tensor.numel() == 0 or same not in copies:
            copies[same] = plain(tensor.resolve_conj().resolve_neg()).cpu()
        state[key] = copies[same]
    if not state:
        raise ExportError(f"{type(module).__name__} has no tensors")
    return state


# --- Writing ---------------------------------------------------------------


def write_safetensors(module: nn.Module, path: Path) -> None:
    metadata = {"format": "pt"}
    safetensors_file.write(path, state_of(module), metadata, crc=True)


def write_torch(module: nn.Module, path: Path) -> None:
    write_file(path, [saved(state_of(module))])


def write_torchscript(module: nn.Module, path: Path, x: Tensor) -> list[str]:
    """Traces the module; returns remarks on what the archive cannot do."""
    try:
        traced = torch.jit.trace(module, (x,), check_trace=False)
    except Exception as error:
        raise failure(
            f"{type(module).__name__} cannot be traced with one input of shape"
            f" {tuple(x.shape)} (--format safetensors needs no tracing)",
            error,
        ) from error
    write_file(path, [repacked(scripted(traced))])

    remarks = []
    for name, other in (
        ("batches", torch.cat([x, x])),
        ("numbers of tokens", x[..., : x.shape[-2] // 2 + 1, :]),
    ):
        if other.shape != x.shape and not same_output(traced, module, other):
            remarks.append(
                f"the archive's code does not fit other {name} than those of"
                " --input-shape; its weights do"
            )
    return remarks


def same_output(
    first: Callable[[Tensor], Any], second: Callable[[Tensor], Any], x: Tensor
) -> bool:
    """Says if both give the same tensor, within rounding."""
    try:
        outputs = run_once(first, x), run_once(second, x)
    except Exception:  # what does not run is not the same
        return False
    if not all(isinstance(output, Tensor) for output in outputs):
        return False
    if outputs[0].shape != outputs[1].shape:
        return False
    rtol, atol = TOLERANCES.get(x.dtype, (1e-3, 1e-3))
    return torch.allclose(*outputs, rtol=rtol, atol=atol)


def run_once(module: Callable[[Tensor], Any], x: Tensor) -> Any:
    with torch.no_grad():
        return module(x)


# --- Sample values for verify ----------------------------------------------


def candidates(
    module: nn.Module, x: Tensor
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields kinds and arguments of our classes with the module's keys."""
    state = module.state_dict()
    if "W_query" in state:
        d_in, d_out = state["W_query"].shape
        yield "self-v1", {"d_in": d_in, "d_out": d_out}
        return
    heads = 0
    while f"heads.{heads}.W_query.weight" in state:
        heads += 1
    prefix = "heads.0." if heads else ""
    if f"{prefix}W_query.weight" not in state:
        return
    d_out, d_in = state[f"{prefix}W_query.weight"].shape
    arguments = {
        "d_in": d_in,
        "d_out": d_out,
        "qkv_bias": f"{prefix}W_query.bias" in state,
    }
    mask = state.get(f"{prefix}mask")
    projected = "out_proj.weight" in state
    if mask is None and not projected and not heads:
        yield "self-v2", arguments
        return
    arguments["context_length"] = x.shape[-2] if mask is None else len(mask)
    arguments["dropout"] = 0.0
    # `verify` expects the mask of a masked module in the file.
    for causal in (False,) if mask is None else (True, False):
        arguments["causal"] = causal
        if heads:
            yield "wrapper", {**arguments, "num_heads": heads}
        elif projected:
            for number in possible_heads(module, d_out):
                yield "mha", {**arguments, "num_heads": number}
        else:
            yield "single", dict(arguments)


def possible_heads(module: nn.Module, d_out: int) -> list[int]:
    """Returns the number that the module names, or all possible ones."""
    named = getattr(module, "num_heads", None)
    if isinstance(named, int) and named > 0 and d_out % named == 0:
        return [named]
    return [n for n in range(1, d_out + 1) if d_out % n == 0]


def recognize(module: nn.Module, x: Tensor) -> dict[str, Any] | None:
    """Returns the config of our class that computes what the module does."""
    if x.dtype not in TOLERANCES:
        return None
    state = module.state_dict()
    for kind, arguments in candidates(module, x):
        ours = CLASSES[kind](**arguments).to(x.dtype).eval()
        try:
            keys = ours.load_state_dict(state, strict=False)
        except RuntimeError:  # other shapes
            continue
        lacks = [k for k in keys.missing_keys if k.split(".")[-1] != "mask"]
        if lacks or keys.unexpected_keys:
            continue
        if same_output(ours, module, x):
            return {"class": type(ours).__name__, **arguments}
    return None


# --- Command line ----------------------------------------------------------


def export(options: argparse.Namespace) -> list[str]:
    """Does what the command line says; returns what to print."""
    module = build(options.factory, options.seed)
    if options.checkpoint:
        load_checkpoint(module, options.checkpoint)
    module = submodule(module, options.submodule).to("cpu")
    if options.dtype:
        module = module.to(DTYPES[options.dtype])
    path = options.out
    path.parent.mkdir(parents=True, exist_ok=True)

    state = state_of(module)
    count = sum(tensor.numel() for tensor in state.values())
    kind = type(module).__name__
    lines = [f"{path}: {kind}, {len(state)} tensors, {count} elements"]
    x = None
    generator = torch.Generator().manual_seed(options.seed + 1)
    if options.input_shape:
        x = draw(options.input_shape, dtype_of(state), generator)
    if options.format == "safetensors":
        write_safetensors(module, path)
    elif options.format == "torch":
        write_torch(module, path)
    else:
        remarks = write_torchscript(module, path, x)
        lines += [f"note: {remark}" for remark in remarks]

    recorded = path.with_suffix(".expected.pt")
    config = None if x is None else recognize(module, x)
    if config:
        trained = copy.deepcopy(module).requires_grad_()
        values = record(trained, config, x, generator, options.seed)
        write_file(recorded, [saved(values)])
        text = ", ".join(f"{key}={value}" for key, value in config.items())
        lines.append(f"{recorded}: sample values of {text}")
        return lines
    if x is not None:
        lines.append(
            "note: no sample values: none of the library's classes has this"
            " module's keys and computes what it computes"
        )
    if recorded.exists():
        lines.append(
            f"note: {recorded} is of an earlier export; remove it before you"
            " run verify"
        )
    return lines


def dtype_of(state: Mapping[str, Tensor]) -> torch.dtype:
    """Returns the dtype of the first floating point tensor."""
    floating = (t.dtype for t in state.values() if t.is_floating_point())
    return next(floating, torch.float32)


def shape(text: str) -> tuple[int, ...]:
    """Reads "1,8,768"."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) not in (2, 3) or min(sizes) < 1:
        raise argparse.ArgumentTypeError(
            f"expected sizes such as 1,8,768 (batch, tokens, d_in), but got"
            f" {text!r}"
        )
    return sizes


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Export the attention of any Python module for"
        " TorchAttention.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "factory",
        metavar="MODULE:FACTORY",
        help="name to import, from the current folder too: a class or function"
        " that takes no arguments and gives a torch.nn.Module, or a module",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write")
    parser.add_argument(
        "--submodule",
        default="",
        metavar="PATH",
        help="the attention in the module, such as trf_blocks.3.att",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="state dict for the whole module, loaded strictly",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="default: by the suffix of OUT, .safetensors or .pth (torch)",
    )
    parser.add_argument(
        "--input-shape",
        type=shape,
        metavar="B,T,C",
        help="of the sample input; torchscript needs it",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, help="convert the weights (default: as is)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=123,
        help="of the factory's and the sample input's random numbers"
        " (default: 123)",
    )
    options = parser.parse_args(arguments)
    if not options.format:
        options.format = FORMAT_OF_SUFFIX.get(options.out.suffix)
    if not options.format:
        parser.error(
            f"the suffix of {options.out} does not say which --format it is"
        )
    if options.format == "torchscript" and not options.input_shape:
        parser.error("--format torchscript needs --input-shape")
    if not 0 <= options.seed < SEED_LIMIT:
        parser.error(f"--seed must be from 0 to {SEED_LIMIT - 1}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    # Newer releases call TorchScript deprecated at each use of it.
    warnings.filterwarnings("ignore", message=r"(?s).*torch\.jit")
    try:
        for line in export(options):
            print(line)
    except (ExportError, OSError) as error:
        print(f"export_weights.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
