"""Swaps random programs with attention, and compares them with what they were.

    python swap_programs.py DRIVER LIBRARY [--count N] [--seed S] [--minutes M]
                            [--keep FOLDER]

DRIVER is the program of swap_files.cpp, LIBRARY libtorch_attention.so. Each
program is traced or scripted, perhaps frozen, and runs before and after with
other sizes than it was traced with, in evaluation and training, with gradients.
Where the program throws, or gives NaN, the swapped one may do something else;
where Python throws and TorchScript does not, it may throw.
"""

import argparse
import copy
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import torch

import random_programs

TRACED_SIZE = (2, 6)
SIZES = [(2, 6), (1, 1), (2, 3), (3, 9), (1, 17), (2, 70)]

# Fewer swapped programs than this would test little.
LEAST_SWAPPED = 0.25


class Driver:
    def __init__(self, program):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def swap(self, source, target):
        self.process.stdin.write(f"{source} {target}\n")
        self.process.stdin.flush()
        lines = []
        while True:
            line = self.process.stdout.readline()
            if line == "end\n":
                return "".join(lines)
            if not line:
                raise SystemExit(f"the driver ended at {source}")
            lines.append(line)


def load_classes(text, folder, name):
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(kind, model):
    """Returns a TorchScript module, or None where it cannot be made."""
    x = torch.randn(*TRACED_SIZE, random_programs.WIDTH, dtype=model.q.weight.dtype)
    try:
        if kind.startswith("trace"):
            made = torch.jit.trace(model, (x,), check_trace=False)
        else:
            made = torch.jit.script(model)
        return torch.jit.freeze(made.eval()) if "freeze" in kind else made
    except Exception:  # noqa: BLE001: not a program of TorchScript
        return None


def run(model, x):
    """Returns the output and gradients, or the error."""
    x = x.clone().requires_grad_()
    parameters = [p for p in model.parameters() if p.requires_grad]
    try:
        y = model(x * 1.0)
    except Exception as error:  # noqa: BLE001
        return error
    results = [y.detach()]
    if y.requires_grad:
        try:
            gradients = torch.autograd.grad(
                y.sin().sum(), [x, *parameters], allow_unused=True)
        except Exception as error:  # noqa: BLE001
            return [*results, error]
        results += [torch.zeros(1) if g is None else g for g in gradients]
    return results


def tolerance(is_gradient, dtype, text):
    if dtype != torch.float64:
        return 2e-4 if is_gradient else 2e-5
    # TorchScript's own gradients cast back to float32 in another order.
    return 1e-5 if is_gradient and ".float()" in text else 1e-8


def differ(expected, actual, text):
    """Returns how results differ, or nothing."""
    if isinstance(expected, Exception):
        return None
    if isinstance(actual, Exception):
        return f"throws {str(actual)[-600:]}"
    for i, (e, a) in enumerate(zip(expected, actual)):
        if isinstance(e, Exception):
            return None
        if isinstance(a, Exception):
            return f"backward throws {str(a)[-600:]}"
        if e.shape != a.shape or e.dtype != a.dtype:
            return f"result {i}: {a.dtype}{tuple(a.shape)}, not {e.dtype}{tuple(e.shape)}"
        known = e.isfinite()
        if not known.any():
            continue
        # A NaN in the output is one in all gradients that it reaches.
        if i > 0 and not known.all():
            continue
        largest = max(1.0, e[known].abs().max().item())
        worst = (e - a)[known].abs().max().item() / largest
        if not worst <= tolerance(i > 0, e.dtype, text):
            return f"result {i} differs by {worst:.2e}"
    if len(expected) != len(actual):
        return f"{len(actual)} results, not {len(expected)}"
    return None


def is_noise(source, training, x, expected, actual):
    """Tells whether results in float32 are about as close to those in float64 as
    the ones before the swap. A score of -800 is rounded to 6e-5."""
    if x.dtype != torch.float32 or len(expected) != len(actual):
        return False
    exact = torch.jit.load(source).double().train(training)
    exact = run(exact, x.double())
    if isinstance(exact, Exception) or len(exact) != len(expected):
        return False
    for t, e, a in zip(exact, expected, actual):
        if any(isinstance(one, Exception) for one in (t, e, a)) or not (
                t.shape == e.shape == a.shape and e.dtype == a.dtype):
            return False
        if not (a - t).abs().max() <= 16 * (e - t).abs().max() + 1e-6:
            return False
    return True


def throws(model, training, x):
    """Tells whether Python refuses a program or its gradients. Some of them run in
    TorchScript all the same, by how it groups operators."""
    results = run(copy.deepcopy(model).train(training), x)
    return isinstance(results, Exception) or isinstance(results[-1], Exception)


def compare(model, source, target, text):
    dtype = model.q.weight.dtype
    before = torch.jit.load(source)
    after = torch.jit.load(target)
    generator = torch.Generator().manual_seed(1)
    for training in (False, True):
        before.train(training)
        after.train(training)
        for batch, tokens in SIZES:
            x = torch.randn(batch, tokens, random_programs.WIDTH,
                            dtype=dtype, generator=generator)
            expected = run(before, x)
            actual = run(after, x)
            difference = differ(expected, actual, text)
            if difference and "throws" in difference and throws(model, training, x):
                continue
            if difference and not is_noise(
                    source, training, x, expected, actual):
                return (f"{difference} with (B, T) = ({batch}, {tokens}), "
                        f"{'training' if training else 'evaluation'}")
    return None


KINDS = ["trace", "script", "script", "trace-freeze", "script-freeze"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("library")
    parser.add_argument(
        "--count", type=int,
        default=2000 if os.environ.get("TORCH_ATTENTION_NIGHTLY") else 500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--keep", type=pathlib.Path)
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.ops.load_library(arguments.library)
    driver = Driver(arguments.driver)
    made = swapped = left_alone = failed = 0
    seed = arguments.seed
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        while (time.monotonic() < end if end else
               seed < arguments.seed + arguments.count):
            text = random_programs.HEADER + "\n\n" + random_programs.program(seed, "Program")
            module = load_classes(text, folder, f"program_{seed}")
            kind = KINDS[seed % len(KINDS)]
            dtype = torch.float64 if seed // len(KINDS) % 2 else torch.float32
            torch.manual_seed(seed)
            model = module.Program().to(dtype)
            script = make(kind, model)
            if script is not None:
                made += 1
                source = str(folder / f"{seed}.pt")
                target = str(folder / f"{seed}.swapped.pt")
                torch.jit.save(script, source)
                report = driver.swap(source, target)
                wrong = None
                if report.startswith("threw"):
                    wrong = report
                elif "swapped " in report:
                    swapped += 1
                    wrong = compare(model, source, target, text)
                else:
                    left_alone += "left alone" in report
                if wrong:
                    failed += 1
                    print(f"program {seed}, {kind}, {dtype}: {wrong}\n{report}"
                          f"{text[len(random_programs.HEADER):]}", flush=True)
                if not arguments.keep:
                    for path in folder.iterdir():
                        if path.is_file():
                            path.unlink()
            seed += 1
    print(f"{seed - arguments.seed} programs, {made} of them TorchScript: "
          f"{swapped} swapped, {left_alone} left alone, {failed} wrong")
    if swapped < LEAST_SWAPPED * made or not made:
        sys.exit("too few programs are swapped to test much")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
