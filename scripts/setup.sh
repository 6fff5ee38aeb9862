#!/usr/bin/env bash
# Finds or installs what the build and the tests need.
#
# Run by itself it prepares the machine. The other scripts source it for its
# functions and for `setup`, which sets
#   TORCH_PYTHON  a Python that can import torch

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
REQUIREMENTS="$ROOT/scripts/requirements.txt"

CMAKE_MINIMUM=3.21
PYTHON_MINIMUM=3.10
LIBTORCH_CXX20_SINCE=2.14
# While pip installs, downloads and installed files are there at once: LibTorch
# 2.15 takes 8.4 GB then, and the build comes beside it.
VENV_FREE_GB=9
LINT_VERSION=14

# What is needed: the package's name in Debian, when (always, optional: all can
# do without, lint: scripts/test.sh can do without), a description or what is
# left out without it, and what shows that it is there, one of these: commands,
# or headers.
packages() {
  cat <<TABLE
g++|always|a C++17 compiler|c++ g++ clang++
cmake|always|CMake $CMAKE_MINIMUM or newer|cmake
ninja-build|always|Ninja|ninja
pkg-config|always|pkg-config|pkg-config
python3|always|Python $PYTHON_MINIMUM or newer|python3
catch2|always|Catch2 2.13 or newer|<catch2/catch.hpp> <catch2/catch_all.hpp>
libfmt-dev|always|fmt|<fmt/core.h>
libcli11-dev|always|CLI11|<CLI/CLI.hpp>
libzip-dev|always|libzip|<zip.h>
libdeflate-dev|always|libdeflate|<libdeflate.h>
zlib1g-dev|always|zlib|<zlib.h>
nlohmann-json3-dev|always|nlohmann-json 3|<nlohmann/json.hpp>
libhwy-dev|always|Highway|<hwy/highway.h>
ccache|optional|builds after the first one take longer|ccache
clang-format-$LINT_VERSION|lint|the format check is left out|clang-format-$LINT_VERSION clang-format
clang-tidy-$LINT_VERSION|lint|clang-tidy is left out|clang-tidy-$LINT_VERSION clang-tidy
TABLE
}

# --- Messages and steps ------------------------------------------------------

say() { printf '%s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

step_total=2 step_number=0 step_title="" step_start=0 step_times=""

# Ends the step before, and starts the next one.
step() {
  step_done
  step_number=$((step_number + 1))
  step_title="$1"
  step_start=$SECONDS
  say "[$step_number/$step_total] $step_title"
}

step_done() {
  [[ -n "$step_title" ]] || return 0
  local seconds=$((SECONDS - step_start))
  say "      done in $seconds s"
  step_times+="$(printf '%6d s  %s' "$seconds" "$step_title")"$'\n'
  step_title=""
}

# Also where `set -e` ends a script, the failing step is named.
on_exit() {
  local status=$?
  stop_ticker
  if ((status != 0)) && [[ -n "$step_title" ]]; then
    printf 'FAILED in step %d/%d: %s (after %d s)\n' "$step_number" \
      "$step_total" "$step_title" $((SECONDS - step_start)) >&2
  fi
}
trap on_exit EXIT

ticker=""
stop_ticker() {
  [[ -n "$ticker" ]] || return 0
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  ticker=""
}

# Runs a command with its output in a file, which is shown if it fails.
run_logged() {
  local log="$1" status=0
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 || status=$?
  if ((status != 0)); then
    tail -n 200 "$log" >&2
    printf 'error: "%s" failed. Its output: %s\n' "$*" "$log" >&2
  fi
  return "$status"
}

version_at_least() { printf '%s\n%s\n' "$2" "$1" | sort -V -C; }

# --- Tools and libraries -----------------------------------------------------

check_system() {
  [[ "$(uname -s)" == Linux ]] ||
    die "expected Linux, but this is $(uname -s): see README.md for what the build needs."
}

# The C++ compiler that CMake takes, reading a source from its input.
compile() {
  local name compiler=()
  read -ra compiler <<<"${CXX:-}"
  for name in c++ g++ clang++; do
    if ((${#compiler[@]} == 0)) && command -v "$name" >/dev/null; then
      compiler=("$name")
    fi
  done
  "${compiler[@]:-c++}" "$@" -x c++ - 2>/dev/null
}

has_header() {
  local prefix prefixes=() options=()
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    options+=("-I$prefix/include")
  done
  compile -std=c++17 -E "${options[@]}" >/dev/null <<CODE
#if !__has_include($1)
#error
#endif
CODE
}

# Prints the command of clang-format or clang-tidy in our version, if there.
lint_tool() {
  if command -v "$1-$LINT_VERSION" >/dev/null; then
    say "$1-$LINT_VERSION"
  elif "$1" --version 2>/dev/null | grep -q "version $LINT_VERSION\."; then
    say "$1"
  fi
}

is_there() {
  local package="$1" sign
  shift
  for sign in "$@"; do
    case "$package:$sign" in
      *:\<*) ! has_header "$sign" || return 0 ;;
      clang-*) [[ -z "$(lint_tool "${package%-*}")" ]] || return 0 ;;
      g++:*)
        # CXX may have arguments.
        sign="${CXX:-$sign}"
        ! command -v "${sign%% *}" >/dev/null || return 0
        ;;
      *) ! command -v "$sign" >/dev/null || return 0 ;;
    esac
  done
  return 1
}

# Prints the packages that are not there, of those that are needed "$1": the
# names, or with "describe" a line for each.
missing() {
  local wanted="$1" form="${2:-}" package when text signs
  while IFS='|' read -r package when text signs; do
    # shellcheck disable=SC2086 # one word a sign
    if [[ "$when" == "$wanted" ]] && ! is_there "$package" $signs; then
      say "$package${form:+: $text}"
    fi
  done < <(packages)
}

# Runs apt-get as root. With "ask" it may ask for a password on the terminal.
apt_get() {
  local ask="$1" prefix=()
  shift
  command -v apt-get >/dev/null || return 1
  if ((EUID != 0)); then
    command -v sudo >/dev/null || return 1
    sudo -n true 2>/dev/null ||
      { [[ "$ask" == ask && -t 0 && -t 2 ]] && sudo -v; } || return 1
    prefix=(sudo)
  fi
  run_logged "$ROOT/build/setup/apt-get.log" "${prefix[@]}" env \
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}

# Installs those of the packages that this system's lists have.
apt_install() {
  local ask="$1" package known=()
  shift
  # If the lists cannot be read anew, those of before may still do.
  apt_get "$ask" update || true
  for package in "$@"; do
    if apt-cache show "$package" >/dev/null 2>&1; then
      known+=("$package")
    fi
  done
  ((${#known[@]} > 0)) || return 0
  say "      installing: ${known[*]}"
  apt_get "$ask" install --no-install-recommends -y "${known[@]}"
}

# $1: "lint" for the tools of test.sh too.
setup_tools() {
  local when packages=() version
  mapfile -t packages < <(missing always)
  if ((${#packages[@]} > 0)); then
    apt_install ask "${packages[@]}" || true
  fi
  mapfile -t packages < <(missing always)
  if ((${#packages[@]} > 0)); then
    {
      say "error: not found:"
      missing always describe | sed 's/^/  - /'
      say "Install them with this system's package manager, then run this again. In Debian:"
      say "  apt-get update && apt-get install --no-install-recommends -y ${packages[*]}"
    } >&2
    exit 1
  fi
  for when in optional "$@"; do
    mapfile -t packages < <(missing "$when")
    if ((${#packages[@]} > 0)); then
      apt_install "" "${packages[@]}" || true
      missing "$when" describe | sed 's/^/      note: not found: /'
    fi
  done
  version="$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')"
  version_at_least "$version" "$CMAKE_MINIMUM" ||
    die "expected cmake $CMAKE_MINIMUM or newer, but $(command -v cmake) is $version. One way: python3 -m pip install cmake"
  check_compiler 17
}

check_compiler() {
  compile "-std=c++$1" -fsyntax-only <<<'#include <optional>' ||
    die "expected a compiler that knows C++$1 (CXX chooses another)."
}

# --- Python and LibTorch -----------------------------------------------------

# Whether $1 runs, is new enough, and has the Python modules that follow.
python_has() {
  local python="$1"
  shift
  # Not in the current folder: a folder "torch" there would be taken for it.
  (cd / && "$python" -c '
import importlib.util, sys
minimum, *modules = sys.argv[1:]
new = sys.version_info[:2] >= tuple(map(int, minimum.split(".")))
sys.exit(not (new and all(map(importlib.util.find_spec, modules))))' \
    "$PYTHON_MINIMUM" "$@" 2>/dev/null)
}

# LibTorch as CMake finds it: sets libtorch and libtorch_version, empty if there
# is none, and libtorch_error.
libtorch="" libtorch_version="" libtorch_error=""
find_libtorch() {
  {
    read -r libtorch
    read -r libtorch_version
    read -r libtorch_error
  } < <(cmake -D "TORCH_ATTENTION_VENV_PARENT=$ROOT" \
    -P "$ROOT/cmake/print_libtorch.cmake")
}

# Names the LibTorch that was found, and checks that this compiler can use it.
check_libtorch() {
  [[ -z "$libtorch_error" ]] || die "$libtorch_error"
  say "      LibTorch $libtorch_version: $libtorch"
  if version_at_least "$libtorch_version" "$LIBTORCH_CXX20_SINCE"; then
    check_compiler 20
  fi
}

# Makes the virtual environment $1 from the requirements $2 unless it is there.
# Its stamp holds the checksum of what was installed. One without a stamp was
# made by hand: it is good if it holds torch.
ensure_venv() {
  local venv="$1" requirements="$2" stamp="$1/requirements.sha256" wanted
  wanted="$(sha256sum <"$requirements" | cut -c-64)"
  # One script at a time; the others wait.
  mkdir -p "$ROOT/build/setup" "$venv"
  exec 9>"$ROOT/build/setup/lock"
  flock -n 9 || {
    say "      waiting for another script that is making a virtual environment"
    flock 9
  }
  if ! python_has "$venv/bin/python" torch ||
    [[ -e "$stamp" && "$(<"$stamp")" != "$wanted" ]]; then
    make_venv "$venv" "$requirements"
    say "$wanted" >"$stamp"
  fi
  exec 9>&-
}

make_venv() {
  local venv="$1" requirements="$2" python free_kb
  local options=(--disable-pip-version-check --no-input --only-binary :all:
    -r "$requirements")
  say "      making $venv from $requirements: about 3 GB to download, 5 GB on disk"
  free_kb="$(df -Pk "$venv" | awk 'NR == 2 { print $4 }')"
  ((free_kb >= VENV_FREE_GB * 1024 * 1024)) ||
    die "expected $VENV_FREE_GB GB of free disk for LibTorch, but $venv has $((free_kb / 1024)) MB. CMAKE_PREFIX_PATH can name a LibTorch that is already on this machine."
  # What an interrupted run left is made anew.
  if ! python_has "$venv/bin/python" pip ||
    [[ "$(cat "$venv/requirements.sha256" 2>/dev/null)" == incomplete ]]; then
    python="$(base_python)"
    rm -rf "$venv"
    mkdir -p "$venv"
    say incomplete >"$venv/requirements.sha256"
    "$python" -m venv "$venv"
  fi
  say incomplete >"$venv/requirements.sha256"
  # pip unpacks downloads in TMPDIR; /tmp may be small, being in memory.
  mkdir -p "$venv/tmp"
  if [[ ! -t 1 ]]; then
    options+=(--quiet)
    # pip draws no bar. No copy of the lock outlives the script.
    (
      exec 9>&-
      while sleep 15 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        say "      $(du -sm "$venv" 2>/dev/null | cut -f1) MB so far"
      done
    ) &
    ticker=$!
  fi
  TMPDIR="$venv/tmp" "$venv/bin/python" -m pip install "${options[@]}" ||
    die "pip could not install $requirements. Is the network there? The next run starts again."
  stop_ticker
  rm -rf "$venv/tmp"
}

# A Python that can make virtual environments: the active one may be ours, and
# broken. Debian leaves the modules for it out of python3.
base_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if python_has "$python" venv ensurepip; then
      say "$python"
      return
    fi
  done
  apt_install ask python3-venv >&2 || true
  python_has /usr/bin/python3 venv ensurepip ||
    die "expected a Python $PYTHON_MINIMUM or newer with the modules venv and ensurepip (in Debian: python3 and python3-venv)."
  say /usr/bin/python3
}

setup_libtorch() {
  local python
  find_libtorch
  if [[ -z "$libtorch" || "$libtorch" == "$VENV"/* ]]; then
    ensure_venv "$VENV" "$REQUIREMENTS"
    find_libtorch
  fi
  check_libtorch
  # That of the virtual environment in which LibTorch lies, or the active one.
  TORCH_PYTHON=""
  for python in "$libtorch/../../../../bin/python" python3 "$VENV/bin/python"; do
    if [[ -z "$TORCH_PYTHON" ]] && python_has "$python" torch; then
      TORCH_PYTHON="$(cd / && "$python" -c 'import sys; print(sys.executable)')"
    fi
  done
  if [[ -z "$TORCH_PYTHON" ]]; then
    ensure_venv "$VENV" "$REQUIREMENTS"
    TORCH_PYTHON="$VENV/bin/python"
  fi
  export TORCH_PYTHON
}

# --- The whole ---------------------------------------------------------------

# Settings of every build that the scripts start. A file that includes LibTorch
# takes up to 2 GB to compile.
set_build_environment() {
  local jobs
  export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$ROOT}"
  jobs="$(awk -v cores="$(nproc)" '/^MemAvailable:/ {
    jobs = int($2 / 2097152)
    print jobs < 1 ? 1 : jobs < cores ? jobs : cores }' /proc/meminfo)"
  export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}"
}

# $1: "lint" for the tools of test.sh too.
setup() {
  check_system
  step "tools: compiler, CMake, libraries"
  setup_tools "$@"
  step "LibTorch"
  setup_libtorch
  set_build_environment
}

setup_main() {
  case "$*" in
    "") setup ;;
    --lint) setup lint ;;
    -h | --help)
      cat <<'TEXT'
Usage: scripts/setup.sh [--lint]

Finds or installs what the build and the tests need, with apt: see the table in
this script. LibTorch is looked for in CMAKE_PREFIX_PATH and Torch_DIR, in the
package torch of the python3 on PATH, and in .venv, which is made from
scripts/requirements.txt if there is none.

  --lint  also clang-format and clang-tidy, for scripts/test.sh
  --help  this text
TEXT
      return
      ;;
    *) die "unknown arguments \"$*\". See scripts/setup.sh --help" ;;
  esac
  step_done
  say "ready. Python with torch: $TORCH_PYTHON"
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  setup_main "$@"
fi
