"""A fresh virtual environment with the wheel, made and used by the tests.

    python environment.py install FOLDER SOURCE
    python environment.py run FOLDER SCRIPT ARGUMENT...

`install` makes the environment in FOLDER, which finds torch where this Python does,
installs tests/python/requirements.txt and a wheel that it builds from SOURCE, and
before it SOURCE itself by `pip install -e`, to test that (editable.py). `run`
runs a script of this folder by the environment's Python. Both exit with 77, which
CTest takes for skipped, where the packages could not be installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIPPED = 77


def skip(reason: str) -> None:
    print("skipped:", reason)
    # Continuous integration leaves out nothing.
    sys.exit(1 if os.environ.get("CI") == "true" else SKIPPED)


def site_packages(folder: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "venv/lib" / version / "site-packages"


def python_of(folder: Path) -> str:
    return str(folder / "venv/bin/python")


def make(folder: Path) -> None:
    """Makes the environment and installs the requirements, unless it is there."""
    requirements = (HERE / "requirements.txt").read_text()
    complete = folder / "requirements.txt"
    if complete.exists() and complete.read_text() == requirements:
        return
    complete.unlink(missing_ok=True)
    if subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "venv"]).returncode:
        skip("this Python makes no virtual environments")
    torch = Path(importlib.util.find_spec("torch").origin).parents[1]
    (site_packages(folder) / "torch.pth").write_text(f"{torch}\n")
    install = ["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "-q"]
    command = [python_of(folder), *install, "-r", HERE / "requirements.txt"]
    if subprocess.run(command).returncode:
        skip("tests/python/requirements.txt could not be installed")
    complete.write_text(requirements)


def install(folder: Path, source: Path) -> None:
    make(folder)
    for old in (folder / "dist").glob("*"):
        old.unlink()
    pip = [python_of(folder), "-m", "pip", "--disable-pip-version-check"]
    # As deep as the folders of other builds: ccache has relative paths.
    build = source / f"build/wheel-{importlib.metadata.version('torch')}"
    options = ["--no-deps", "--no-build-isolation", f"--config-settings=build-dir={build}"]
    environment = {"CCACHE_BASEDIR": str(source), **os.environ}
    subprocess.run(
        [*pip, "wheel", source, "-w", folder / "dist", *options], check=True, env=environment
    )
    subprocess.run([*pip, "install", "-e", source, *options], check=True, env=environment)
    if run(folder, "editable.py", str(source)):
        sys.exit("the editable installation failed")
    (wheel,) = (folder / "dist").glob("*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    subprocess.run([*pip, "install", "--no-deps", "--force-reinstall", wheel], check=True)


def run(folder: Path, script: str, *arguments: str) -> int:
    if not (site_packages(folder) / "torch_attention").exists():
        skip(f"no package in {folder}")
    path = f"{Path(python_of(folder)).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [python_of(folder), HERE / script, *arguments], env=environment
    ).returncode


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    if command == "install":
        install(Path(folder), Path(rest[0]))
    else:
        sys.exit(run(Path(folder), *rest))
