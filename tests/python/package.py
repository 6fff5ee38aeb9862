"""The installed package: its import, program, CMake package and errors.

    python package.py GENERATOR GOLDEN

GENERATOR is CMake's, GOLDEN an archive for tests/consumers/find_package. Runs
tests/operators/operators.py (opcheck, compile, export) with the wheel's library.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch

import torch_attention
from torch_attention import _folders

TESTS = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = pathlib.Path(torch_attention.__file__).parent


def output_of(*command: str | os.PathLike[str], **options: object) -> str:
    return subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, **options
    ).stdout


def test_operators() -> None:
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    torch.testing.assert_close(
        torch_attention.attention(q, k, v, causal=True),
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    )
    operators = TESTS / "operators/operators.py"
    print(output_of(sys.executable, operators, torch_attention.library))


def test_import_of_torch_attention_imports_no_transformers() -> None:
    code = "import sys, torch_attention; print('transformers' in sys.modules)"
    assert output_of(sys.executable, "-c", code).strip() == "False"


def test_flash_attention_registry() -> None:
    attention = torch.nn.attention
    if not hasattr(attention, "register_flash_attention_impl"):
        return
    assert "torch_attention" in attention.list_flash_attention_impls()
    is_replaced = torch.ops.torch_attention.is_sdpa_replaced
    attention.activate_flash_attention_impl("torch_attention")
    assert is_replaced()
    # PyTorch 2.10 has no way back of its own.
    restore = getattr(attention, "restore_flash_attention_impl", torch_attention.restore_sdpa)
    restore()
    assert not is_replaced()


def test_program() -> None:
    """In the environment that has torch, and without LD_LIBRARY_PATH."""
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    program = pathlib.Path(sys.executable).parent / "torch-attention"
    assert torch_attention.__version__ in output_of(program, "--version", env=environment)
    # The status of the program is that of the command.
    wrong = subprocess.run([program, "no-command"], env=environment, capture_output=True)
    assert wrong.returncode != 0 and b"no-command" in wrong.stderr, wrong


def test_cpp_project(generator: str, golden: str) -> None:
    """find_package finds the library by the prefix that Python prints."""
    prefix = output_of(
        sys.executable, "-c", "import torch_attention as t; print(t.cmake_prefix_path)"
    ).strip()
    environment = {k: v for k, v in os.environ.items() if k != "CMAKE_PREFIX_PATH"}
    with tempfile.TemporaryDirectory() as build:
        output_of(
            "cmake", "-G", generator, "-S", TESTS / "consumers/find_package", "-B", build,
            f"-DCMAKE_PREFIX_PATH={prefix}", env=environment,
        )
        output_of("cmake", "--build", build, env=environment)
        print(output_of(pathlib.Path(build) / "consumer", golden, env=environment))


def test_names_no_folder_of_the_build() -> None:
    """Nothing in the wheel names the machine that built it."""
    torch_folder = str(pathlib.Path(torch.__file__).parent)
    for path in pathlib.Path(torch_attention.cmake_prefix_path).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for folder in (torch_folder, str(TESTS.parent)):
                assert folder.encode() not in data, f"{path} names {folder}"


def test_another_torch() -> None:
    """A version that the package was not built for is refused by name."""
    own = "{}.{}".format(*torch.__version__.split(".")[:2])
    assert _folders.prefix_for(torch.__version__).name == f"libtorch-{own}"
    with tempfile.TemporaryDirectory() as folder:
        package = pathlib.Path(folder, "torch_attention")
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("libtorch-*"))
        (package / "libtorch-2.1").mkdir()
        failed = subprocess.run(
            [sys.executable, "-c", "import torch_attention"],
            cwd=folder, capture_output=True, text=True,
        )
    assert failed.returncode != 0
    message = f"was built for (2.1), but got torch {torch.__version__}"
    assert message in failed.stderr, failed.stderr


test_operators()
test_import_of_torch_attention_imports_no_transformers()
test_flash_attention_registry()
test_program()
test_cpp_project(*sys.argv[1:])
test_names_no_folder_of_the_build()
test_another_torch()
print("passed")
