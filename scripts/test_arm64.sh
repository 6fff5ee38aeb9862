#!/usr/bin/env bash
# Cross-compiles the library for ARM64 and tests it under QEMU.

set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=setup.sh disable=SC1091
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/test_arm64.sh [--installed | PATTERN]

Builds the preset arm64 against LibTorch of ARM64, and runs its tests of kernels,
modules and weights, or those whose names match, under QEMU: on a processor with
products of bfloat16, unless QEMU_CPU names another. LibTorch (146 MB) is
downloaded with pip, and Debian's libraries of ARM64 with apt; nothing is
installed. All of it lies in build/arm64, 3 GB.

  --installed  tests what is installed: the program prints what that of this
               machine prints, projects in C++ find and use the libraries, and a
               Python of ARM64 imports the wheel, and compares small models of
               transformers with eager

Needs Debian, g++-aarch64-linux-gnu and qemu-user; --installed needs Debian 12,
since the wheel of LibTorch is for its Python. With kernels alone:
  cmake --preset arm64-kernels
TEXT
}

# The newest wheel for ARM64 that has no CUDA.
TORCH_REQUIREMENT="torch==2.10.0 --hash=sha256:3282d9febd1e4e476630a099692b44fdc214ee9bf8ee5377732d9d9dfe5712e4"
PYTHON_VERSION=3.11
PACKAGES=(libc6 libstdc++6 libzip-dev libdeflate-dev zlib1g-dev libutf8proc-dev libfmt-dev python3)
# The first random cases of tests/python/transformers_random.py: as many as have
# all its model types.
PYTHON_CASES=40

# --- Downloads ---------------------------------------------------------------

# Tells whether the folder $1 was filled from the list $2, to its end.
is_filled() { [[ "$(cat "$1/filled_from.txt" 2>/dev/null)" == "$2" ]]; }

note_filled() { printf '%s\n' "$2" >"$1/filled_from.txt"; }

# Lets apt-get work in the folder `apt`, as on a machine of ARM64 that has no
# package.
apt_arm64() {
  run_logged "$folder/apt.log" env APT_CONFIG="$apt/apt.conf" apt-get -qq "$@"
}

fetch_libraries() {
  local apt="$folder/apt" package link
  ! is_filled "$system" "${PACKAGES[*]}" || return 0
  rm -rf "$apt" "$system"
  mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$system"
  : >"$apt/status"
  cat >"$apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Debug::NoLocking "true";
CONF
  apt_arm64 update
  apt_arm64 -y --no-install-recommends --download-only install "${PACKAGES[@]}"
  for package in "$apt"/archives/*.deb; do
    # The cross compiler has the headers of the C library.
    case "${package##*/}" in
      libc6-dev_* | linux-libc-dev_*) ;;
      *) dpkg-deb -x "$package" "$system" ;;
    esac
  done
  # Links of the folder's files to each other.
  find "$system" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
    ln -snf "$system$(readlink "$link")" "$link"
  done
  rm -rf "$apt"
  note_filled "$system" "${PACKAGES[*]}"
}

# Unpacks wheels of ARM64 into the folder $1. The other arguments are those of
# `pip download`.
fetch_wheels() {
  local to="$1" downloads="$folder/downloads" tag platforms=() wheel
  for tag in 2_17 2_24 2_27 2_28; do
    platforms+=(--platform "manylinux_${tag}_aarch64")
  done
  rm -rf "$downloads"
  run_logged "$folder/pip.log" "$python" -m pip download \
    --disable-pip-version-check --no-input --only-binary :all: \
    --python-version "$PYTHON_VERSION" "${platforms[@]}" \
    --platform manylinux2014_aarch64 -d "$downloads" "${@:2}"
  for wheel in "$downloads"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$to"
  done
  rm -rf "$downloads"
}

fetch_libtorch() {
  ! is_filled "$arm64_torch" "$TORCH_REQUIREMENT" || return 0
  rm -rf "$arm64_torch"
  say "$TORCH_REQUIREMENT" >"$folder/requirements.txt"
  fetch_wheels "$arm64_torch" --no-deps --require-hashes -r "$folder/requirements.txt"
  note_filled "$arm64_torch" "$TORCH_REQUIREMENT"
}

fetch_transformers() {
  local tests="$ROOT/tests" wanted
  wanted="$(cat "$tests/arm64/requirements.txt" "$tests/python/requirements.txt")"
  ! is_filled "$transformers" "$wanted" || return 0
  rm -rf "$transformers"
  fetch_wheels "$transformers" -r "$tests/arm64/requirements.txt"
  note_filled "$transformers" "$wanted"
}

# --- Tests -------------------------------------------------------------------

build() {
  run_logged "$folder/configure.log" cmake --preset arm64 \
    -DTORCH_ATTENTION_ARM64_ROOT="$system" \
    -DCMAKE_PREFIX_PATH="$arm64_torch/torch"
  cmake --build --preset arm64 --target "$@"
}

run_tests() {
  ctest --preset arm64 --no-tests=error --timeout 7200 -R "$1" "${@:2}"
}

test_library() {
  step "release build for ARM64"
  build torch_attention_tests torch_attention_internal_tests torch_attention_cpu_tests
  step "tests under QEMU"
  run_tests "$pattern" -E '^weights\.(costs|models_json)$'
}

test_program() {
  run_logged "$folder/configure_here.log" cmake --preset release
  cmake --build --preset release --target torch-attention
  "$ROOT/tests/arm64/program_test.sh" "$ROOT/build/release/bin/torch-attention" \
    "$folder/tests/golden" "${qemu[@]}" "$folder/bin/torch-attention"
}

# Builds the wheel as for this machine, but with the toolchain, and unpacks it
# next to LibTorch, where it looks for it.
build_wheel() {
  local wheels="$folder/wheels" old
  rm -rf "$wheels"
  for old in "$arm64_torch"/torch_attention*; do
    rm -rf "$old"
  done
  CMAKE_PREFIX_PATH="$arm64_torch/torch" _PYTHON_HOST_PLATFORM=linux-aarch64 \
    run_logged "$folder/wheel.log" "$python" -m pip wheel "$ROOT" -w "$wheels" \
    --disable-pip-version-check --no-deps \
    --config-settings=build-dir="$ROOT/build/arm64-wheel" \
    --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$ROOT/cmake/aarch64-linux-gnu.cmake" \
    --config-settings=cmake.define.TORCH_ATTENTION_ARM64_ROOT="$system"
  "$python" -m zipfile -e "$wheels"/torch_attention-*-linux_aarch64.whl "$arm64_torch"
}

test_python() {
  PYTHONPATH="$arm64_torch:$transformers" HF_HUB_OFFLINE=1 \
    "${qemu[@]}" "$system/usr/bin/python$PYTHON_VERSION" \
    "$ROOT/tests/python/transformers_random.py" --cases "$PYTHON_CASES"
}

test_installed() {
  [[ -e "$system/usr/bin/python$PYTHON_VERSION" ]] ||
    die "expected Debian 12, whose Python is $PYTHON_VERSION, as is the wheel of LibTorch."
  step "packages of Python for ARM64"
  fetch_transformers
  step "release build for ARM64"
  build torch-attention
  step "the program under QEMU"
  test_program
  step "projects that use the libraries"
  run_tests '^consumer\.(components|find_package)$'
  step "wheel for ARM64"
  build_wheel
  step "transformers under QEMU"
  test_python
}

installed="" pattern='^(cpu|kernels|nn|weights)\.'
case "${1:-}" in
  -h | --help)
    usage
    exit
    ;;
  --installed) installed=yes ;;
  -*) die "unknown argument \"$1\". See scripts/test_arm64.sh --help" ;;
  "") ;;
  *) pattern="$1" ;;
esac
(($# <= 1)) || die "expected one argument. See scripts/test_arm64.sh --help"
# These folders are emptied: no name of them may mean another one in setup.sh.
readonly folder="$ROOT/build/arm64"
readonly system="$folder/system" arm64_torch="$folder/libtorch"
readonly transformers="$folder/transformers"
export QEMU_CPU="${QEMU_CPU:-max}"

cd "$ROOT"
step_total=5
[[ -z "$installed" ]] || step_total=9
setup
has_arm64_tools ||
  die "expected g++-aarch64-linux-gnu and qemu-user. In Debian:
  apt-get install --no-install-recommends -y g++-aarch64-linux-gnu qemu-user"
python="$(python_with pip "$TORCH_PYTHON" python3 /usr/bin/python3)" ||
  die "no Python with pip found."
qemu=("$(command -v qemu-aarch64 || command -v qemu-aarch64-static)" -L "$system")
step "LibTorch and libraries of ARM64"
fetch_libraries
fetch_libtorch
if [[ -n "$installed" ]]; then
  test_installed
else
  test_library
fi
