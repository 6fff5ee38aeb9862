#!/usr/bin/env bash
# Usage: scripts/setup.sh [--lint]
#
# Finds or installs what the build and the tests need, with apt: see the table in
# packages.sh. LibTorch is looked for where the build looks (docs/build.md); if
# there is none, .venv is made from scripts/requirements.txt.
#
#   --lint  also clang-format, clang-tidy and Chromium, for scripts/test.sh
#   --help  this text

# The other scripts source this one for its functions and for `setup`, which
# sets TORCH_PYTHON, a Python that can import torch.

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
REQUIREMENTS="$ROOT/scripts/requirements.txt"

# shellcheck source-path=SCRIPTDIR source=steps.sh disable=SC1091
source "$ROOT/scripts/steps.sh"
# shellcheck source-path=SCRIPTDIR source=packages.sh disable=SC1091
source "$ROOT/scripts/packages.sh"

# pip keeps downloads and installed files at the same time: for LibTorch 2.15
# these take 8.4 GB. The build needs space as well.
VENV_FREE_GB=9

# --- LibTorch ----------------------------------------------------------------

# Makes the virtual environment $1 from the requirements $2. It then holds a copy
# of them.
make_venv() {
  local venv="$1" requirements="$2" installed="$1/requirements.txt" free_kb
  say "      making $venv from $requirements: about 3 GB to download, 5 GB on disk"
  free_kb="$(df -Pk "$venv" | awk 'NR == 2 { print $4 }')"
  ((free_kb >= VENV_FREE_GB * 1024 * 1024)) ||
    die "expected $VENV_FREE_GB GB of free disk for LibTorch, but $venv has $((free_kb / 1024)) MB. CMAKE_PREFIX_PATH can name a LibTorch that is already on this machine."
  if [[ -e "$installed" ]] || ! python_with pip "$venv/bin/python" >/dev/null; then
    provide venv || die "expected $(missing text venv) (in Debian: python3-venv)."
    rm -rf "$venv"
    "$(base_python)" -m venv "$venv"
  fi
  # The next run must not take interrupted work for complete.
  : >"$installed"
  # pip unpacks downloads in TMPDIR; /tmp may be small, since it may be in
  # memory.
  mkdir -p "$venv/tmp"
  TMPDIR="$venv/tmp" "$venv/bin/python" -m pip install --no-input \
    --disable-pip-version-check --only-binary :all: -r "$requirements" ||
    die "pip could not install $requirements. Is the network there? The next run starts again."
  rm -rf "$venv/tmp"
  cp "$requirements" "$installed"
}

# Makes it unless it has torch and was made from the same requirements, or by
# hand, without a copy of them.
ensure_venv() {
  mkdir -p "$ROOT/build/setup" "$1"
  {
    flock 9 # one script at a time
    if ! python_with torch "$1/bin/python" >/dev/null ||
      { [[ -e "$1/requirements.txt" ]] && ! cmp -s "$2" "$1/requirements.txt"; }; then
      make_venv "$@"
    fi
  } 9>"$ROOT/build/setup/lock"
}

# Finds LibTorch as CMake does: sets its folder, empty if there is none, its
# version, the C++ standard that it needs, and the error.
find_libtorch() {
  {
    read -r libtorch
    read -r libtorch_version
    read -r libtorch_standard
    read -r libtorch_error
  } < <(cmake -D "TORCH_ATTENTION_VENV_PARENT=$ROOT" \
    -P "$ROOT/cmake/print_libtorch.cmake")
}

# Prints the LibTorch that was found, and checks that this compiler can use it.
check_libtorch() {
  [[ -z "$libtorch_error" ]] || die "$libtorch_error"
  say "      LibTorch $libtorch_version: $libtorch"
  knows_cxx "$libtorch_standard" ||
    die "expected a compiler that knows C++$libtorch_standard (CXX chooses another)."
}

# Provides LibTorch and TORCH_PYTHON: the Python of the virtual environment that
# holds LibTorch, the active one, or that of .venv.
setup_libtorch() {
  local python
  find_libtorch
  if [[ -z "$libtorch" || "$libtorch" == "$VENV"/* ]]; then
    ensure_venv "$VENV" "$REQUIREMENTS"
    find_libtorch
  fi
  check_libtorch
  if ! python="$(python_with torch "$libtorch/../../../../bin/python" python3)"; then
    ensure_venv "$VENV" "$REQUIREMENTS"
    python="$VENV/bin/python"
  fi
  TORCH_PYTHON="$(cd / && "$python" -c 'import sys; print(sys.executable)')"
  export TORCH_PYTHON
}

# --- The whole ---------------------------------------------------------------

# Sets variables for every build that the scripts start. A file that includes
# LibTorch takes up to 2 GB to compile.
set_build_environment() {
  local jobs
  export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$ROOT}"
  jobs="$(awk -v cores="$(nproc)" '/^MemAvailable:/ {
    jobs = int($2 / 2097152)
    print jobs < 1 ? 1 : jobs < cores ? jobs : cores }' /proc/meminfo)"
  export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}"
}

# Prepares everything; with "lint", also for test.sh.
setup() {
  step "tools: compiler, CMake, libraries"
  setup_tools "$@"
  step "LibTorch"
  setup_libtorch
  set_build_environment
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  case "$*" in
    "") setup ;;
    --lint) setup lint ;;
    -h | --help) exec sed -n '2,/^$/s/^# \{0,1\}//p' "$0" ;;
    *) die "unknown arguments \"$*\". See scripts/setup.sh --help" ;;
  esac
  step_done
  say "ready. Python with torch: $TORCH_PYTHON"
fi
