#!/usr/bin/env bash
# Cross-compiles the library for ARM64 and tests it under QEMU.

set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=setup.sh disable=SC1091
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/test_arm64.sh [PATTERN]

Builds the preset arm64 against LibTorch of ARM64, and runs its tests of kernels,
modules and weights, or those whose names match, under QEMU: on a processor with
products of bfloat16, unless QEMU_CPU names another. LibTorch (146 MB) is
downloaded with pip, and Debian's libraries of ARM64 with apt; nothing is
installed. All of it lies in build/arm64, 3 GB.

Needs Debian, g++-aarch64-linux-gnu and qemu-user. With kernels alone:
  cmake --preset arm64-kernels
TEXT
}

# The newest wheel for ARM64 that has no CUDA.
TORCH_REQUIREMENT="torch==2.10.0 --hash=sha256:3282d9febd1e4e476630a099692b44fdc214ee9bf8ee5377732d9d9dfe5712e4"
PACKAGES=(libc6 libstdc++6 libzip-dev libdeflate-dev zlib1g-dev libutf8proc-dev libfmt-dev)

# Lets apt-get work in the folder `apt`, as on a machine of ARM64 that has no
# package.
apt_arm64() {
  run_logged "$folder/apt.log" env APT_CONFIG="$apt/apt.conf" apt-get -qq "$@"
}

fetch_libraries() {
  local apt="$folder/apt" package link
  [[ ! -e "$system/complete" ]] || return 0
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
  : >"$system/complete"
}

fetch_libtorch() {
  local downloads="$folder/downloads" python
  [[ ! -e "$folder/libtorch/complete" ]] || return 0
  python="$(python_with pip "$TORCH_PYTHON" python3 /usr/bin/python3)" ||
    die "no Python with pip found."
  rm -rf "$downloads" "$folder/libtorch"
  mkdir -p "$downloads" "$folder/libtorch"
  say "$TORCH_REQUIREMENT" >"$downloads/requirements.txt"
  run_logged "$folder/pip.log" "$python" -m pip download \
    --disable-pip-version-check --no-input --no-deps --only-binary :all: \
    --platform manylinux_2_28_aarch64 --python-version 3.11 --require-hashes \
    -r "$downloads/requirements.txt" -d "$downloads"
  "$python" -m zipfile -e "$downloads"/*.whl "$folder/libtorch"
  rm -rf "$downloads"
  : >"$folder/libtorch/complete"
}

case "${1:-}" in
  -h | --help)
    usage
    exit
    ;;
esac
(($# <= 1)) || die "expected one pattern. See scripts/test_arm64.sh --help"
# Scripts that start programs do not know of QEMU.
pattern="${1:-^(cpu|kernels|nn|weights)\.}"
folder="$ROOT/build/arm64"
system="$folder/system"

cd "$ROOT"
step_total=5
setup
has_arm64_tools ||
  die "expected g++-aarch64-linux-gnu and qemu-user. In Debian:
  apt-get install --no-install-recommends -y g++-aarch64-linux-gnu qemu-user"
step "LibTorch and libraries of ARM64"
fetch_libraries
fetch_libtorch
step "release build for ARM64"
run_logged "$folder/configure.log" cmake --preset arm64 \
  -DTORCH_ATTENTION_ARM64_ROOT="$system" \
  -DCMAKE_PREFIX_PATH="$folder/libtorch/torch"
cmake --build --preset arm64 --target torch_attention_tests \
  torch_attention_internal_tests torch_attention_cpu_tests
step "tests under QEMU"
QEMU_CPU="${QEMU_CPU:-max}" ctest --preset arm64 --no-tests=error \
  --timeout 7200 -R "$pattern" -E '^weights\.(costs|models_json)$'
