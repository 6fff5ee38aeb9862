"""Swaps models by the command line, and compares what is reported.

    python swap_models.py PROGRAM LIBRARY SCRIPTS [--large] [NAME...]

PROGRAM is torch-attention, LIBRARY libtorch_attention.so, SCRIPTS the folder of
the project's Python modules. With --large models are of a size for
measurements, and a table is printed.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import torch

arguments = [a for a in sys.argv[1:] if a != "--large"]
large = "--large" in sys.argv
program, library, scripts, *names = arguments
sys.path.insert(0, scripts)

import models  # noqa: E402
from model_case import LARGE, SMALL  # noqa: E402
from transformers_models import has_transformers  # noqa: E402


def swap(case, folder):
    path = folder / f"{case.name}.pt"
    inputs = folder / f"{case.name}.x.pt"
    output = folder / f"{case.name}.swapped.pt"
    torch.jit.save(case.script, path)
    torch.save(case.inputs, inputs)
    result = subprocess.run(
        [program, "swap", path, output, "--check", inputs],
        capture_output=True,
        text=True,
    )
    return result.stdout + result.stderr, result.returncode, output


def problems(case, text, status):
    swapped = re.findall(r"^swapped +(?:[^:]+): (?:[\w.]+: )?(.*)$", text, re.M)
    left = re.findall(r"^left alone ", text, re.M)
    if len(swapped) != case.swapped or len(left) != case.left_alone:
        yield f"{len(swapped)} swapped, {len(left)} left alone"
    if swapped and swapped[0] != case.what:
        yield f'taken for "{swapped[0]}", not "{case.what}"'
    if (status == 0) != (case.swapped > 0):
        yield f"status {status}"
    if case.swapped and not case.random:
        if "outputs differ by" not in text:
            yield "not compared"
    elif case.swapped and "not compared" not in text:
        yield "compared, though random"


def check_message(path):
    """Without our library, LibTorch names the operator that it lacks."""
    result = subprocess.run(
        [sys.executable, "-c", "import sys, torch; torch.jit.load(sys.argv[1])",
         path],
        capture_output=True,
        text=True,
    )
    wanted = "Unknown builtin op: torch_attention::"
    if result.returncode == 0 or wanted not in result.stderr:
        sys.exit(f"without our library: {result.stderr}")


failed = 0
count = 0
with tempfile.TemporaryDirectory() as temporary:
    torch.ops.load_library(library)
    for case in models.cases(LARGE if large else SMALL):
        if names and case.name not in names:
            continue
        count += 1
        text, status, output = swap(case, pathlib.Path(temporary))
        wrong = list(problems(case, text, status))
        failed += bool(wrong)
        if wrong or names:
            print(f"{case.name}: {', '.join(wrong) or 'as expected'}\n{text}")
        elif large:
            time = re.search(r"took (.*) ms and takes (.*) ms: (.*) times", text)
            if time:
                print("| {} | {} | {} | {} | {} |".format(
                    case.name, case.what, *time.groups()), flush=True)
        if status == 0:
            # Python runs it as well, and saves it again.
            model = torch.jit.load(str(output))
            model(*case.inputs.values())
            torch.jit.save(model, str(output))
            if case.name == "heads":
                check_message(output)
if not has_transformers():
    print("left out: the models of transformers, which is not installed; "
          "swap_attention_test.cpp swaps saved ones")
print(f"{count - failed} of {count} models are swapped as expected")
sys.exit(bool(failed) or not count)
