"""The command torch-attention: starts the program that fits the installed torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys

from ._folders import prefix_for


def main() -> None:
    # Found without importing it, which takes seconds.
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("torch-attention: expected the package torch, but it is not installed.")
    try:
        program = prefix_for(importlib.metadata.version("torch")) / "bin" / "torch-attention"
    except ImportError as error:
        sys.exit(str(error))
    # torch may be in another folder of packages than we are.
    folders = [os.path.join(spec.submodule_search_locations[0], "lib")]
    folders += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(folders)
    os.execv(program, ["torch-attention", *sys.argv[1:]])
