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
LIBTORCH_MINIMUM=2.6
LIBTORCH_CXX20_SINCE=2.14
# While pip installs, downloads and installed files are there at once: LibTorch
# 2.15 takes 8.4 GB then, and the build comes beside it.
VENV_FREE_GB=9
LINT_VERSION=14

# --- Messages and steps ------------------------------------------------------

say() {
  printf '%s\n' "$*"
}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

step_total=2
step_number=0
step_title=""
step_start=0
step_times=""

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

version_at_least() {
  printf '%s\n%s\n' "$2" "$1" | sort -V -C
}

# --- Tools and libraries -----------------------------------------------------

check_system() {
  [[ "$(uname -s)" == Linux ]] ||
    die "expected Linux, but this is $(uname -s): see README.md for what the build needs."
}

# The command of the C++ compiler, the one that CMake takes.
find_compiler() {
  local name
  if [[ -n "${CXX:-}" ]]; then
    say "$CXX"
    return
  fi
  for name in c++ g++ clang++; do
    if command -v "$name" >/dev/null; then
      say "$name"
      return
    fi
  done
}

# Prints the Debian packages of the libraries whose headers are not there: the
# preprocessor drops the names of the others.
missing_libraries() {
  local prefix includes=() prefixes=() compiler=()
  read -ra compiler <<<"$1"
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    includes+=("-I$prefix/include")
  done
  "${compiler[@]}" -std=c++17 "${includes[@]}" -E -P -x c++ - <<'CODE'
#if !__has_include(<catch2/catch.hpp>) && !__has_include(<catch2/catch_all.hpp>)
catch2
#endif
#if !__has_include(<fmt/core.h>)
libfmt-dev
#endif
#if !__has_include(<CLI/CLI.hpp>)
libcli11-dev
#endif
#if !__has_include(<zip.h>)
libzip-dev
#endif
#if !__has_include(<libdeflate.h>)
libdeflate-dev
#endif
#if !__has_include(<zlib.h>)
zlib1g-dev
#endif
#if !__has_include(<nlohmann/json.hpp>)
nlohmann-json3-dev
#endif
#if !__has_include(<hwy/highway.h>)
libhwy-dev
#endif
CODE
}

missing_required() {
  local compiler
  compiler="$(find_compiler)"
  if [[ -z "$compiler" ]]; then
    # No compiler to ask for headers: apt skips the ones that are there.
    say g++ catch2 libfmt-dev libcli11-dev libzip-dev \
      libdeflate-dev zlib1g-dev nlohmann-json3-dev libhwy-dev
  else
    missing_libraries "$compiler"
  fi
  command -v cmake >/dev/null || say cmake
  command -v ninja >/dev/null || say ninja-build
  command -v pkg-config >/dev/null || say pkg-config
  if ! command -v python3 >/dev/null; then
    say python3 python3-venv
  elif [[ ! -x "$VENV/bin/python" ]]; then
    missing_ensurepip
  fi
}

# Debian leaves the modules that make a virtual environment out of python3.
missing_ensurepip() {
  read_python python3
  [[ -z "$python_torch" && "$python_base" == /usr/bin/* ]] || return 0
  has_ensurepip || say python3-venv
}

lint_tool() {
  local name="$1"
  if command -v "$name-$LINT_VERSION" >/dev/null; then
    say "$name-$LINT_VERSION"
  elif "$name" --version 2>/dev/null | grep -q "version $LINT_VERSION\."; then
    say "$name"
  fi
}

# What the scripts can do without. $1: "lint" for the tools of test.sh too.
missing_optional() {
  command -v ccache >/dev/null || say ccache
  [[ "${1:-}" == lint ]] || return 0
  [[ -n "$(lint_tool clang-format)" ]] || say "clang-format-$LINT_VERSION"
  [[ -n "$(lint_tool clang-tidy)" ]] || say "clang-tidy-$LINT_VERSION"
}

describe_package() {
  case "$1" in
    g++) say "a C++17 compiler (g++)" ;;
    cmake) say "cmake $CMAKE_MINIMUM or newer" ;;
    ninja-build) say "ninja" ;;
    catch2) say "Catch2 2.13 or newer" ;;
    libfmt-dev) say "fmt" ;;
    libcli11-dev) say "CLI11" ;;
    libzip-dev) say "libzip" ;;
    libdeflate-dev) say "libdeflate" ;;
    zlib1g-dev) say "zlib" ;;
    nlohmann-json3-dev) say "nlohmann-json 3" ;;
    libhwy-dev) say "Highway" ;;
    python3) say "Python $PYTHON_MINIMUM or newer" ;;
    python3-venv) say "the Python modules venv and ensurepip" ;;
    *) say "$1" ;;
  esac
}

# Sets as_root to the prefix of commands for root, or fails. With "ask" it may
# ask for a password on the terminal.
as_root=()
become_root() {
  as_root=()
  ((EUID == 0)) && return
  command -v sudo >/dev/null || return 1
  as_root=(sudo)
  sudo -n true 2>/dev/null && return
  [[ "${1:-}" == ask && -t 0 && -t 2 ]] && sudo -v
}

apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}

# Reads the lists once a run. If that fails, the lists of before may still do.
apt_updated=""
apt_update_once() {
  [[ -z "$apt_updated" ]] || return 0
  apt_updated=yes
  run_logged "$ROOT/build/setup/apt-update.log" apt_get update || true
}

apt_install() {
  say "      installing: $*"
  run_logged "$ROOT/build/setup/apt-install.log" \
    apt_get install --no-install-recommends -y "$@"
}

explain_missing() {
  local package
  {
    say "error: not found:"
    for package in "$@"; do
      say "  - $(describe_package "$package")"
    done
    if ! command -v apt-get >/dev/null; then
      say "Install them with this system's package manager, then run this again."
      say "Debian calls the packages: $*"
    else
      local sudo=""
      ((EUID == 0)) || sudo="sudo "
      say "Install them with this command (it needs root), then run this again:"
      say "  ${sudo}apt-get update && ${sudo}apt-get install --no-install-recommends -y $*"
    fi
  } >&2
  exit 1
}

install_required() {
  (($# > 0)) || return 0
  if ! command -v apt-get >/dev/null || ! become_root ask; then
    explain_missing "$@"
  fi
  apt_update_once
  apt_install "$@" || explain_missing "$@"
}

# Installs those that this system's package lists know, if that needs no
# password, and says what is left out.
# $1: "lint" or "", as in missing_optional; then packages.
install_optional() {
  local lint="$1" package known=()
  shift
  (($# > 0)) || return 0
  if command -v apt-get >/dev/null && become_root; then
    compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || apt_update_once
    for package in "$@"; do
      if apt-cache show "$package" >/dev/null 2>&1; then
        known+=("$package")
      fi
    done
    if ((${#known[@]} > 0)); then
      apt_update_once
      apt_install "${known[@]}" || true
    fi
  fi
  for package in $(missing_optional "$lint"); do
    say "      note: $package not found: $(without_package "$package")"
  done
}

without_package() {
  case "$1" in
    ccache) say "builds after the first one take longer" ;;
    clang-format-*) say "the format check is left out" ;;
    clang-tidy-*) say "clang-tidy is left out" ;;
  esac
}

check_cmake() {
  local version
  version="$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')"
  version_at_least "$version" "$CMAKE_MINIMUM" ||
    die "expected cmake $CMAKE_MINIMUM or newer, but $(command -v cmake) is $version. One way: python3 -m pip install cmake"
}

check_compiler() {
  local standard="$1" compiler=()
  read -ra compiler <<<"$(find_compiler)"
  "${compiler[@]}" "-std=c++$standard" -fsyntax-only -x c++ - 2>/dev/null <<'CODE' ||
#include <optional>
CODE
    die "expected a compiler that knows C++$standard, but \"${compiler[*]}\" does not (CXX chooses another)."
}

# $1: "lint" for the tools of test.sh too.
setup_tools() {
  local lint="${1:-}" required optional
  required="$(missing_required)"
  optional="$(missing_optional "$lint")"
  # shellcheck disable=SC2086 # one word a package
  install_required $required
  # shellcheck disable=SC2086
  install_optional "$lint" $optional
  check_cmake
  check_compiler 17
}

# --- Python and LibTorch -----------------------------------------------------

# Prints what a Python holds, one fact a line. It does not import torch, which
# takes seconds.
probe_python() {
  # Not in the current folder: Python would take a folder "torch" there for it.
  (cd / && "$1" - 2>/dev/null) <<'CODE'
import importlib.util
import os
import sys

spec = importlib.util.find_spec("torch")
torch = os.path.dirname(spec.origin) if spec and spec.origin else ""
config = os.path.join(torch, "share", "cmake", "Torch")
print("%d.%d" % sys.version_info[:2])
print(sys.executable)
print(sys.prefix)
print(getattr(sys, "_base_executable", None) or sys.executable)
print(torch)
print(config if torch and os.path.isdir(config) else "")
CODE
}

# Sets the facts of $1, empty where there is no such Python.
python_version="" python_executable="" python_prefix="" python_base=""
python_torch="" python_libtorch=""
read_python() {
  {
    read -r python_version
    read -r python_executable
    read -r python_prefix
    read -r python_base
    read -r python_torch
    read -r python_libtorch
  } < <(probe_python "$1" || printf '\n\n\n\n\n\n')
}

# LibTorch's folder share/cmake/Torch as the environment names it.
libtorch_of_environment() {
  local prefix folder prefixes=()
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}" "${Torch_DIR:-}"; do
    [[ -n "$prefix" ]] || continue
    for folder in "$prefix/share/cmake/Torch" "$prefix/Torch" "$prefix"; do
      if [[ -f "$folder/TorchConfig.cmake" ]]; then
        say "$folder"
        return
      fi
    done
  done
}

# The version of the LibTorch whose folder share/cmake/Torch is $1.
libtorch_version() {
  sed -n 's/^set(PACKAGE_VERSION "\([0-9.]*\).*/\1/p' \
    "$1/TorchConfigVersion.cmake" 2>/dev/null || true
}

# Names the LibTorch whose folder share/cmake/Torch is $1, and checks that this
# compiler can use it.
check_libtorch() {
  local place="$1" version
  version="$(libtorch_version "$place")"
  say "      LibTorch $version: $place"
  [[ -n "$version" ]] || return 0
  version_at_least "$version" "$LIBTORCH_MINIMUM" ||
    die "expected LibTorch $LIBTORCH_MINIMUM or newer, but $place is $version. To use another one, set CMAKE_PREFIX_PATH or leave that Python environment."
  if version_at_least "$version" "$LIBTORCH_CXX20_SINCE"; then
    check_compiler 20
  fi
}

check_disk() {
  local folder="$1" free_kb
  free_kb="$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')"
  ((free_kb >= VENV_FREE_GB * 1024 * 1024)) ||
    die "expected $VENV_FREE_GB GB of free disk for LibTorch, but $folder has $((free_kb / 1024)) MB. CMAKE_PREFIX_PATH can name a LibTorch that is already on this machine."
}

# The base of a virtual environment: ours may be the active one, and be broken.
choose_base_python() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    read_python "$candidate"
    if [[ -n "$python_version" ]]; then
      break
    fi
  done
  [[ -n "$python_version" ]] || die "expected a python3 that runs."
  version_at_least "$python_version" "$PYTHON_MINIMUM" ||
    die "expected Python $PYTHON_MINIMUM or newer, but $python_executable is $python_version."
  has_ensurepip ||
    die "expected the Python modules venv and ensurepip, but $python_base has none. Debian has them in the package python$python_version-venv."
}

has_ensurepip() {
  "$python_base" -c 'import ensurepip, venv; ensurepip.version()' 2>/dev/null
}

ticker=""

# Where pip draws no bar: how far it is, every 15 s.
start_ticker() {
  local folder="$1"
  (
    # No copy of the lock or of our output outlives the script.
    exec 9>&-
    while sleep 15 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
      say "      $(du -sm "$folder" 2>/dev/null | cut -f1) MB so far"
    done
  ) &
  ticker=$!
}

stop_ticker() {
  [[ -n "$ticker" ]] || return 0
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  ticker=""
}

pip_install() {
  local venv="$1" requirements="$2" status=0
  local options=(--disable-pip-version-check --no-input --only-binary :all:)
  # pip unpacks downloads in TMPDIR; /tmp may be small, being in memory.
  mkdir -p "$venv/tmp"
  if [[ ! -t 1 ]]; then
    options+=(--quiet --progress-bar off)
    start_ticker "$venv"
  fi
  TMPDIR="$venv/tmp" "$venv/bin/python" -m pip install "${options[@]}" \
    -r "$requirements" || status=$?
  stop_ticker
  rm -rf "$venv/tmp"
  ((status == 0)) ||
    die "pip could not install $requirements (Python $python_version). Is the network there? The next run starts again."
}

# Only one script at a time makes a virtual environment; the others wait.
lock() {
  mkdir -p "$ROOT/build/setup"
  exec 9>"$ROOT/build/setup/lock"
  flock -n 9 && return
  say "      waiting for another script that is making a virtual environment"
  flock 9
}

unlock() {
  exec 9>&-
}

# The stamp of a virtual environment holds the checksum of what was installed,
# or "incomplete" while that goes on.
venv_stamp() {
  cat "$1/requirements.sha256" 2>/dev/null || true
}

venv_wanted() {
  sha256sum <"$1" | cut -c-64
}

# Makes the virtual environment $1 from the requirements $2.
make_venv() {
  local venv="$1" requirements="$2"
  choose_base_python
  mkdir -p "$venv"
  check_disk "$venv"
  say "      about 2.7 GB download, 5 GB on disk, 2 to 4 minutes on a fast line"
  if [[ "$(venv_stamp "$venv")" == incomplete ]] ||
    ! "$venv/bin/python" -c '' 2>/dev/null; then
    rm -rf "$venv"
    mkdir -p "$venv"
    say incomplete >"$venv/requirements.sha256"
    "$python_base" -m venv "$venv"
  fi
  say incomplete >"$venv/requirements.sha256"
  pip_install "$venv" "$requirements"
  venv_wanted "$requirements" >"$venv/requirements.sha256"
}

# True if $1 is there with what $2 asks for. One without our stamp was made by
# hand: it is good if it holds torch.
venv_ready() {
  local venv="$1" requirements="$2" stamp
  [[ -x "$venv/bin/python" ]] || return 1
  read_python "$venv/bin/python"
  [[ -n "$python_torch" ]] || return 1
  stamp="$(venv_stamp "$venv")"
  [[ -z "$stamp" || "$stamp" == "$(venv_wanted "$requirements")" ]]
}

ensure_venv() {
  local venv="$1" requirements="$2"
  venv_ready "$venv" "$requirements" && return
  lock
  # Another script may have made it meanwhile.
  if ! venv_ready "$venv" "$requirements"; then
    say "      making $venv from $requirements"
    make_venv "$venv" "$requirements"
    read_python "$venv/bin/python"
  fi
  unlock
}

# LibTorch in the order in which CMake looks for it, and a Python with torch.
setup_libtorch() {
  local libtorch
  TORCH_PYTHON=""
  libtorch="$(libtorch_of_environment)"
  read_python python3
  # Our own .venv is not somebody's choice, even where it is the active one.
  if [[ -n "$python_torch" && ! "$python_prefix" -ef "$VENV" ]]; then
    libtorch="${libtorch:-$python_libtorch}"
    if version_at_least "$python_version" "$PYTHON_MINIMUM"; then
      TORCH_PYTHON="$python_executable"
    fi
  fi
  if [[ -z "$libtorch" || -z "$TORCH_PYTHON" ]]; then
    ensure_venv "$VENV" "$REQUIREMENTS"
    TORCH_PYTHON="${TORCH_PYTHON:-$VENV/bin/python}"
    libtorch="${libtorch:-$python_libtorch}"
  fi
  check_libtorch "$libtorch"
  export TORCH_PYTHON
}

# --- The whole ---------------------------------------------------------------

# Settings of every build that the scripts start. A file that includes LibTorch
# takes up to 2 GB to compile.
set_build_environment() {
  local jobs memory_jobs
  export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$ROOT}"
  [[ -z "${CMAKE_BUILD_PARALLEL_LEVEL:-}" ]] || return 0
  jobs="$(nproc)"
  memory_jobs="$(awk '/^MemAvailable:/ { print int($2 / 2097152) }' /proc/meminfo)"
  ((memory_jobs >= jobs)) || jobs="$memory_jobs"
  ((jobs >= 1)) || jobs=1
  export CMAKE_BUILD_PARALLEL_LEVEL="$jobs"
}

# $1: "lint" for the tools of test.sh too.
setup() {
  check_system
  step "tools: compiler, CMake, libraries"
  setup_tools "${1:-}"
  step "LibTorch"
  setup_libtorch
  set_build_environment
}

setup_usage() {
  cat <<'TEXT'
Usage: scripts/setup.sh [--lint]

Finds or installs what the build and the tests need: compiler, CMake, Ninja,
ccache, Catch2, fmt, CLI11, libzip, libdeflate, nlohmann-json, Highway with apt, and
LibTorch. LibTorch is looked for in
CMAKE_PREFIX_PATH and Torch_DIR, in the package torch of the python3 on PATH,
and in .venv, which is made from scripts/requirements.txt if there is none.

  --lint  also clang-format and clang-tidy, for scripts/test.sh
  --help  this text
TEXT
}

setup_main() {
  local lint=""
  while (($# > 0)); do
    case "$1" in
      --lint) lint=lint ;;
      -h | --help)
        setup_usage
        return
        ;;
      *) die "unknown argument \"$1\". See scripts/setup.sh --help" ;;
    esac
    shift
  done
  setup "$lint"
  step_done
  say "ready. Python with torch: $TORCH_PYTHON"
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  setup_main "$@"
fi
