#!/usr/bin/env bash
# Builds and tests against another version of LibTorch, beside the usual build.

set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=setup.sh disable=SC1091
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/test_with_libtorch.sh VERSION

Makes a virtual environment with torch==VERSION (such as 2.15.0), builds the
release preset against its LibTorch, and runs the tests. All of it lies in
build/libtorch-VERSION, 6 to 7 GB, of a disk with 9 GB free.
TEXT
}

# Sets up the virtual environment of `folder`: our requirements with another
# torch.
setup_version() {
  mkdir -p "$folder"
  sed "s/^torch==.*/torch==$version/" "$REQUIREMENTS" >"$folder/requirements.txt"
  ensure_venv "$folder/venv" "$folder/requirements.txt"
  # For tests that configure projects of their own, too: they must find the same
  # LibTorch.
  CMAKE_PREFIX_PATH="$(echo "$folder"/venv/lib/python*/site-packages/torch/share/cmake)"
  export CMAKE_PREFIX_PATH
  unset Torch_DIR
  find_libtorch
  check_libtorch
  [[ "$libtorch" == "$folder"/* ]] ||
    die "expected LibTorch below $folder, but CMake found $libtorch."
}

build_version() {
  run_logged "$folder/configure.log" cmake --preset release -B "$folder/build"
  cmake --build "$folder/build"
}

case "${1:-}" in
  -h | --help)
    usage
    exit
    ;;
esac
(($# == 1)) || die "expected one version. See scripts/test_with_libtorch.sh --help"
version="$1"
[[ "$version" =~ ^[0-9]+(\.[0-9]+)+$ ]] ||
  die "expected a version such as 2.15.0, but got \"$version\"."
folder="$ROOT/build/libtorch-$version"

cd "$ROOT"
step_total=4
step "tools: compiler, CMake, libraries"
setup_tools
step "LibTorch $version"
setup_version
set_build_environment
step "release build"
build_version
step "tests of the release build"
ctest --test-dir "$folder/build" --output-on-failure --no-tests=error
