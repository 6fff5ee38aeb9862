#!/usr/bin/env bash
# Usage: scripts/setup.sh [--lint]
#
# Finds or installs what the build and the tests need, with apt: see the table in
# this script. LibTorch is looked for where the build looks (docs/build.md); if
# there is none, .venv is made from scripts/requirements.txt.
#
#   --lint  also clang-format and clang-tidy, for scripts/test.sh
#   --help  this text

# The other scripts source this one for its functions and for `setup`, which
# sets TORCH_PYTHON, a Python that can import torch.

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
REQUIREMENTS="$ROOT/scripts/requirements.txt"

# shellcheck source-path=SCRIPTDIR source=steps.sh disable=SC1091
source "$ROOT/scripts/steps.sh"

CMAKE_MINIMUM=3.21
PYTHON_MINIMUM=3.10
LIBTORCH_CXX20_SINCE=2.14
# pip keeps downloads and installed files at the same time: for LibTorch 2.15
# these take 8.4 GB. The build needs space as well.
VENV_FREE_GB=9
LINT_VERSION=14

# The packages of Debian and Fedora, their kind, a command that checks that they
# are there, and a description, or the loss without them. Kinds: always; venv,
# to make a virtual environment; optional; lint, for scripts/test.sh.
packages() {
  cat <<TABLE
g++|gcc-c++|always|knows_cxx 17|a C++17 compiler (CXX chooses another)
cmake|cmake|always|has_cmake|CMake $CMAKE_MINIMUM or newer (another way: python3 -m pip install cmake)
ninja-build|ninja-build|always|has_command ninja|Ninja
pkg-config|pkgconf-pkg-config|always|has_command pkg-config|pkg-config
python3|python3|always|has_command python3|Python $PYTHON_MINIMUM or newer
catch2|catch-devel|always|has_header catch2/catch.hpp catch2/catch_all.hpp|Catch2 2.13 or newer
libfmt-dev|fmt-devel|always|has_header fmt/core.h|fmt
libcli11-dev|cli11-devel|always|has_header CLI/CLI.hpp|CLI11
libzip-dev|libzip-devel|always|has_header zip.h|libzip
libdeflate-dev|libdeflate-devel|always|has_header libdeflate.h|libdeflate
zlib1g-dev|zlib-devel|always|has_header zlib.h|zlib
nlohmann-json3-dev|json-devel|always|has_header nlohmann/json.hpp|nlohmann-json 3
libhwy-dev|highway-devel|always|has_header hwy/highway.h|Highway
libutf8proc-dev|utf8proc-devel|always|has_header utf8proc.h|utf8proc
python3-venv|python3|venv|base_python|Python $PYTHON_MINIMUM or newer with the modules venv and ensurepip
ccache|ccache|optional|has_command ccache|builds after the first one take longer
clang-format-$LINT_VERSION|clang-tools-extra|lint|lint_tool clang-format|the format check is left out
clang-tidy-$LINT_VERSION|clang-tools-extra|lint|lint_tool clang-tidy|clang-tidy is left out
TABLE
}

# --- Checks ------------------------------------------------------------------

version_at_least() { printf '%s\n%s\n' "$2" "$1" | sort -V -C; }

has_command() { command -v "$1" >/dev/null; }

has_cmake() {
  has_command cmake && version_at_least \
    "$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')" "$CMAKE_MINIMUM"
}

# Compiles a source from standard input, with the compiler that CMake uses.
compile() {
  local command=()
  # CXX may have arguments.
  read -ra command <<<"${CXX:-$(command -v c++ || command -v g++ || echo clang++)}"
  "${command[@]}" "$@" -x c++ - 2>/dev/null
}

knows_cxx() { compile "-std=c++$1" -fsyntax-only <<<'#include <optional>'; }

# Tells whether one of several headers is there.
has_header() {
  local prefix prefixes=() options=()
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    options+=("-I$prefix/include")
  done
  printf '#if !__has_include(<%s>) && !__has_include(<%s>)\n#error\n#endif\n' \
    "$1" "${2:-$1}" | compile -std=c++17 -E "${options[@]}"
}

# Prints the command of clang-format or clang-tidy in our version.
lint_tool() {
  if has_command "$1-$LINT_VERSION"; then
    say "$1-$LINT_VERSION"
  else
    "$1" --version 2>/dev/null | grep -q "version $LINT_VERSION\." && say "$1"
  fi
}

# Tells whether Python $1 is new enough and has the modules that follow.
python_has() {
  # In /, since Python would import a folder "torch" of the current one.
  (cd / && "$1" -c '
import importlib.util, sys
minimum, *modules = sys.argv[1:]
new = sys.version_info[:2] >= tuple(map(int, minimum.split(".")))
sys.exit(not (new and all(map(importlib.util.find_spec, modules))))' \
    "$PYTHON_MINIMUM" "${@:2}" 2>/dev/null)
}

# Prints a Python that can make virtual environments. The active Python may be
# in one itself, and broken; Debian leaves these modules out of python3.
base_python() {
  local python
  for python in python3 /usr/bin/python3; do
    ! python_has "$python" venv ensurepip || { say "$python" && return; }
  done
  return 1
}

# --- Packages ----------------------------------------------------------------

# Prints a column (debian, fedora or text) of the missing packages of a kind.
# shellcheck disable=SC2034 # read by their names
missing() {
  local debian fedora kind check text
  while IFS='|' read -r debian fedora kind check text; do
    # shellcheck disable=SC2086 # a command and its arguments
    [[ "$kind" != "$1" ]] || $check >/dev/null || say "${!2}"
  done < <(packages)
}

# Runs apt-get as root. It may ask for a password on the terminal for the kinds
# that a build needs.
apt_get() {
  local kind="$1" sudo=()
  shift
  has_command apt-get || return 1
  if ((EUID != 0)); then
    sudo=(sudo)
    sudo -n true 2>/dev/null ||
      { [[ "$kind" =~ always|venv && -t 0 && -t 2 ]] && sudo -v; } || return 1
  fi
  run_logged "$ROOT/build/setup/apt-get.log" "${sudo[@]}" env \
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}

# Installs the missing packages of a kind, and fails if some are still missing.
provide() {
  local kind="$1" package known=()
  if [[ -n "$(missing "$kind" debian)" ]]; then
    # If the package lists cannot be updated, the old ones may be enough.
    apt_get "$kind" update || true
    for package in $(missing "$kind" debian); do
      ! apt-cache show "$package" >/dev/null 2>&1 || known+=("$package")
    done
    if ((${#known[@]} > 0)); then
      say "      installing: ${known[*]}" >&2
      apt_get "$kind" install --no-install-recommends -y "${known[@]}" || true
    fi
  fi
  [[ -z "$(missing "$kind" text)" ]]
}

# Provides the tools and libraries; with "lint", also those of test.sh.
setup_tools() {
  local kind
  [[ "$(uname -s)" == Linux ]] || die "expected Linux, but this is $(uname -s)."
  provide always || die "missing or too old:
$(missing always text | sed 's/^/  - /')
Install them, then run this again. In Debian and Ubuntu:
  apt-get update && apt-get install --no-install-recommends -y $(missing always debian | xargs)
In Fedora:
  dnf install -y $(missing always fedora | xargs)"
  for kind in optional "$@"; do
    provide "$kind" ||
      missing "$kind" text | sed 's/^/      note: a tool was not found: /'
  done
}

# --- Python and LibTorch -----------------------------------------------------

# Makes the virtual environment $1 from the requirements $2 unless it exists.
# Its stamp holds the checksum of the requirements that were installed. An
# environment without a stamp was made by hand: it is accepted if it has torch,
# and gets it otherwise.
ensure_venv() {
  local venv="$1" requirements="$2" stamp="$1/requirements.sha256" wanted free_kb
  wanted="$(sha256sum <"$requirements" | cut -c-64)"
  mkdir -p "$ROOT/build/setup" "$venv"
  exec 9>"$ROOT/build/setup/lock"
  flock 9 # one script at a time
  if python_has "$venv/bin/python" torch &&
    [[ ! -e "$stamp" || "$(<"$stamp")" == "$wanted" ]]; then
    exec 9>&-
    return
  fi
  say "      making $venv from $requirements: about 3 GB to download, 5 GB on disk"
  free_kb="$(df -Pk "$venv" | awk 'NR == 2 { print $4 }')"
  ((free_kb >= VENV_FREE_GB * 1024 * 1024)) ||
    die "expected $VENV_FREE_GB GB of free disk for LibTorch, but $venv has $((free_kb / 1024)) MB. CMAKE_PREFIX_PATH can name a LibTorch that is already on this machine."
  if [[ -e "$stamp" ]] || ! python_has "$venv/bin/python" pip; then
    provide venv || die "expected $(missing venv text) (in Debian: python3-venv)."
    rm -rf "$venv"
    "$(base_python)" -m venv "$venv"
  fi
  # The next run must not take interrupted work for complete.
  say incomplete >"$stamp"
  # pip unpacks downloads in TMPDIR; /tmp may be small, since it may be in
  # memory.
  mkdir -p "$venv/tmp"
  TMPDIR="$venv/tmp" "$venv/bin/python" -m pip install --no-input \
    --disable-pip-version-check --only-binary :all: -r "$requirements" ||
    die "pip could not install $requirements. Is the network there? The next run starts again."
  rm -rf "$venv/tmp"
  say "$wanted" >"$stamp"
  exec 9>&-
}

# Finds LibTorch as CMake does: sets libtorch, empty if there is none, its
# version, and the error.
libtorch="" libtorch_version="" libtorch_error=""
find_libtorch() {
  {
    read -r libtorch
    read -r libtorch_version
    read -r libtorch_error
  } < <(cmake -D "TORCH_ATTENTION_VENV_PARENT=$ROOT" \
    -P "$ROOT/cmake/print_libtorch.cmake")
}

# Prints the LibTorch that was found, and checks that this compiler can use it.
check_libtorch() {
  [[ -z "$libtorch_error" ]] || die "$libtorch_error"
  say "      LibTorch $libtorch_version: $libtorch"
  ! version_at_least "$libtorch_version" "$LIBTORCH_CXX20_SINCE" ||
    knows_cxx 20 || die "expected a compiler that knows C++20 (CXX chooses another)."
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
  for python in "$libtorch/../../../../bin/python" python3; do
    ! python_has "$python" torch || break
    python=""
  done
  if [[ -z "$python" ]]; then
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
