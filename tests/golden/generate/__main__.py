"""The command line of the package.

`python tests/golden/generate check`, or `python -m generate check` from
tests/golden.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # by its path
    sys.path[0] = str(Path(__file__).resolve().parents[1])

# generate comes first: it finds the other package.
from generate import (
    encoders,
    files,
    heatmap,
    jit,
    layouts,
    models,
    pretrained,
    reference,
)
from generate.packs import GOLDEN
from generate.reference import drawn, minilm
from torch_attention_reference import ExportError

SETS = {
    golden.name: golden
    for golden in (
        reference.GOLDEN_SET,
        files.GOLDEN_SET,
        layouts.GOLDEN_SET,
        pretrained.GOLDEN_SET,
        jit.GOLDEN_SET,
        models.GOLDEN_SET,
        encoders.GOLDEN_SET,
        heatmap.GOLDEN_SET,
    )
}


def check(names: Sequence[str], folder: Path, complete: bool) -> int:
    """Returns 1 if a committed file differs from the one made again."""
    failures = missing = 0
    for name in names:
        failed, left_out = SETS[name].check(folder)
        failures += failed
        missing += len(left_out)
    return int(failures > 0 or (complete and missing > 0))


def write(names: Sequence[str], folder: Path, complete: bool) -> int:
    missing = sum(len(SETS[name].write(folder)) for name in names)
    return int(complete and missing > 0)


def unpack(names: Sequence[str], folder: Path, out: Path) -> int:
    for name in names:
        count = len(SETS[name].unpack(folder, out))
        print(f"{name}: {count} files")
    return 0


def add_sets(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "sets",
        nargs="*",
        metavar="SET",
        help=f"{', '.join(SETS)} (default: all)",
    )
    command.add_argument(
        "--folder", type=Path, default=GOLDEN, help="default: tests/golden"
    )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="generate",
        description="Make the golden files of the C++ tests.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("check", "compare the committed files with files made again"),
        ("write", "write again the files that differ"),
    ):
        command = commands.add_parser(name, help=text)
        add_sets(command)
        command.add_argument(
            "--complete",
            action="store_true",
            help="fail if a file cannot be made by this Python (packages:"
            " requirements.txt beside this); without this it is left out",
        )

    command = commands.add_parser("unpack", help="unpack the committed files")
    command.add_argument("out", type=Path, metavar="OUT")
    add_sets(command)

    command = commands.add_parser("draw", help="write random reference cases")
    command.add_argument("folder", type=Path, metavar="OUT")
    command.add_argument(
        "--count",
        type=int,
        default=62,
        help="number of cases; 62 or more cover every option (default: 62)",
    )
    command.add_argument(
        "--seed", type=int, help="repeat a run (default: from the system)"
    )

    command = commands.add_parser(
        "minilm", help="write the attention layers of all-MiniLM-L6-v2"
    )
    command.add_argument("folder", type=Path, metavar="OUT")
    command.add_argument(
        "--model", type=Path, required=True, metavar="MODEL.safetensors"
    )
    command.add_argument(
        "--vocab", type=Path, help="default: vocab.txt beside the model"
    )

    command = commands.add_parser(
        "changed",
        help="compare models of changed configurations with transformers",
    )
    command.add_argument(
        "program", type=Path, help="changed_models, of tests/weights"
    )
    command.add_argument("--model", action="append", default=[], dest="models")
    command.add_argument(
        "--edit", default="", metavar="WORD", help="edits that have this word"
    )
    command.add_argument(
        "--part", default="0/1", metavar="I/N", help="case I, I + N, ... alone"
    )

    options = parser.parse_args(arguments)
    if options.command == "draw" and options.count < 1:
        parser.error("--count must be positive")
    for name in getattr(options, "sets", []):
        if name not in SETS:
            parser.error(f"no set {name!r}: choose from {', '.join(SETS)}")
    return options


def check_changed(options: argparse.Namespace) -> int:
    """Returns 1 if a case differs; without transformers nothing is compared."""
    if importlib.util.find_spec("transformers") is None:
        print("changed: left out, needs the package transformers")
        return 0
    from generate.pretrained import changed

    differing = changed.check(
        options.program, options.models, options.edit, options.part
    )
    return int(differing > 0)


def be_quiet() -> None:
    """Silences the warnings of other packages about their own code.

    These are deprecations of TorchScript and quantization, experimental
    dtypes, tied weights of torch.export, and downloads that nobody asked for.
    """
    warnings.simplefilter("ignore")
    logging.getLogger("torch.export").setLevel(logging.ERROR)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    be_quiet()
    try:
        if options.command == "draw":
            drawn.write(options.folder, options.count, options.seed)
        elif options.command == "minilm":
            minilm.write(options.folder, options.model, options.vocab)
        elif options.command == "changed":
            return check_changed(options)
        else:
            names = options.sets or list(SETS)
            if options.command == "unpack":
                return unpack(names, options.folder, options.out)
            run = check if options.command == "check" else write
            return run(names, options.folder, options.complete)
    except (ExportError, OSError, UnicodeError) as error:
        print(f"generate: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
