#!/usr/bin/env bash
# Tests of the project. With --all the quick checks come first, and the tests of
# the release build last, so that their summary ends the output.

set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=setup.sh disable=SC1091
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/test.sh [--all | --nightly | PATTERN...]

Builds and runs the tests that take no longer than a few minutes: those of the
library's parts, the values of the documents that the classes come from, and a
project that uses what is installed. Installs what is missing (scripts/setup.sh).
Stops at the first step that fails.

  PATTERN    only the tests whose names match one of these regular expressions,
             slow ones too; "." is every test
  --all      everything that a change has to pass: format, golden files against
             Python, clang-tidy, the tests under sanitizers, all tests
  --nightly  --all, the library for ARM64 under QEMU, and two hours of random cases
             that no run has had
  --help     this text

With CI=true in the environment a missing tool is an error; otherwise the check
that needs it is left out.
TEXT
}

# Leaves out a check whose tool is missing.
leave_out() {
  [[ "${CI:-}" != true ]] || die "$1"
  say "      LEFT OUT: $1"
}

# MkDocs, tokenizers and gguf, in a virtual environment that CMake finds: tests of the
# release build need them.
setup_test_tools() {
  local venv="$ROOT/build/setup/test_tools" wanted
  wanted="$(cat "$ROOT/tests/requirements.txt" "$ROOT/scripts/site/requirements.txt")"
  # The copy tells that the installation is complete.
  if [[ "$(cat "$venv/requirements.txt" 2>/dev/null)" == "$wanted" ]]; then
    return
  fi
  rm -rf "$venv"
  if ! { base_python >/dev/null || provide venv; } ||
    ! "$(base_python)" -m venv "$venv" ||
    ! run_logged "$ROOT/build/setup/test_tools.log" "$venv/bin/python" -m pip \
      install --disable-pip-version-check --no-input --only-binary :all: \
      -r "$ROOT/tests/requirements.txt"; then
    leave_out "tests/requirements.txt could not be installed: docs.site, tools.tokens and weights.random_gguf are missing."
    return
  fi
  printf '%s\n' "$wanted" >"$venv/requirements.txt"
}

check_format() {
  local tool folder folders=()
  if ! tool="$(lint_tool clang-format)"; then
    leave_out "clang-format $LINT_VERSION not found. Other versions format differently."
    return
  fi
  for folder in include src tests examples benchmarks; do
    [[ ! -d "$ROOT/$folder" ]] || folders+=("$ROOT/$folder")
  done
  find "${folders[@]}" \( -name '*.h' -o -name '*.cpp' \) -print0 |
    xargs -0 "$tool" --dry-run -Werror
}

check_golden() {
  # Without transformers it leaves out the files that need it, and names them.
  "$TORCH_PYTHON" "$ROOT/tests/golden/generate" check
}

# Builds in a separate folder: clang cannot read the precompiled headers of
# another compiler, and refuses any that it finds. Its default standard is older
# than another compiler's, so the standard is given. Sources go in the
# unity files of the build, since LibTorch's headers take most of the time.
run_tidy() {
  local clang_tidy runner pattern folder="$ROOT/build/tidy"
  if ! clang_tidy="$(lint_tool clang-tidy)" ||
    ! has_command "run-$clang_tidy"; then
    leave_out "clang-tidy $LINT_VERSION with run-clang-tidy not found."
    return
  fi
  runner="run-$clang_tidy"
  run_logged "$ROOT/build/setup/configure-tidy.log" cmake --preset release \
    -B "$folder" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
    -DCMAKE_CXX_STANDARD=17 -DCMAKE_CXX_EXTENSIONS=OFF
  # The runner takes a regular expression of full paths.
  # shellcheck disable=SC2016 # nothing to expand
  pattern="^$(printf '%s' "$ROOT/" | sed 's/[][\.*+?^$(){}|]/\\&/g')(build/tidy/)?(benchmarks|src)/"
  run_logged "$folder/clang-tidy.log" "$runner" \
    -clang-tidy-binary "$(command -v "$clang_tidy")" -quiet -p "$folder" \
    -j "$CMAKE_BUILD_PARALLEL_LEVEL" -extra-arg=-Wno-unknown-warning-option \
    "$pattern" || {
    # The findings lie far above the end of the log.
    grep -E '(warning|error): ' "$folder/clang-tidy.log" >&2
    return 1
  }
}

configure() {
  run_logged "$ROOT/build/setup/configure-$1.log" cmake --preset "$1"
}

build() {
  configure "$1"
  cmake --build --preset "$1"
}

# Prints the files of the build that the chosen tests run or read. Arguments: the
# choice, as ctest takes it.
files_of_tests() {
  ctest --preset release --show-only=json-v1 "$@" | "$TORCH_PYTHON" -c '
import json, pathlib, sys

build = pathlib.Path(sys.argv[1])
files = set()
for test in json.load(sys.stdin)["tests"]:
    # The command of a program that is not there yet is left out.
    texts = list(test.get("command", []))
    for entry in test["properties"]:
        if entry["name"] == "REQUIRED_FILES":
            texts += entry["value"]
    for text in texts:
        path = pathlib.Path(text)
        if path.parent in (build / "bin", build / "lib"):
            files.add(path.relative_to(build))
for file in sorted(files):
    print(file)
' "$ROOT/build/release"
}

# Builds what the chosen tests need, and runs them.
run_tests() {
  local files
  configure release
  files="$(files_of_tests "$@")"
  if [[ -n "$files" ]]; then
    # shellcheck disable=SC2086 # one target a line, without spaces
    cmake --build --preset release --target $files
  fi
  step "tests"
  ctest --preset release --output-on-failure "$@"
}

# Sanitizers of older compilers stop if the kernel spreads addresses wider than
# they expect. Containers may forbid switching that off.
fixed_addresses() {
  local prefix=(setarch "$(uname -m)" -R)
  if "${prefix[@]}" true 2>/dev/null; then
    "${prefix[@]}" "$@"
  else
    "$@"
  fi
}

run_sanitizer() {
  build "$1"
  fixed_addresses ctest --preset "$1" --output-on-failure
}

all_checks() {
  step "format"
  check_format
  step "golden files, made again by Python"
  check_golden
  step "clang-tidy"
  run_tidy
  step "thread sanitizer"
  run_sanitizer tsan
  step "address and undefined behaviour sanitizers"
  run_sanitizer asan-ubsan
}

check_arm64() {
  if ! has_arm64_tools; then
    leave_out "g++-aarch64-linux-gnu or qemu-user not found."
    return
  fi
  "$ROOT/scripts/test_arm64.sh"
  "$ROOT/scripts/test_arm64.sh" --installed
}

# Random cases that are new at each run.
random_checks() {
  local seed bin="$ROOT/build/release/bin"
  seed="$(date +%s)"
  step "an hour of random attentions, modules and caches"
  TORCH_ATTENTION_RANDOM_SECONDS=3600 TORCH_ATTENTION_RANDOM_SEED="$seed" \
    "$bin/torch_attention_random_tests"
  step "an hour of random programs"
  "$TORCH_PYTHON" "$ROOT/tests/jit/swap_programs.py" "$bin/swap_files" \
    "$ROOT/build/release/lib/libtorch_attention.so" --seed "$seed" --minutes 60
}

mode="" pattern=""
while (($# > 0)); do
  case "$1" in
    --all | --nightly) mode="$1" ;;
    -h | --help)
      usage
      exit
      ;;
    -*) die "unknown argument \"$1\". See scripts/test.sh --help" ;;
    *) pattern+="${pattern:+|}$1" ;;
  esac
  shift
done
[[ -z "$mode" || -z "$pattern" ]] ||
  die "expected either $mode or names of tests, but got both."

cd "$ROOT"
# Tests run side by side: threads that spin while they wait would take the cores
# of the others.
export OMP_WAIT_POLICY=passive
if [[ -z "$mode" ]]; then
  step_total=4
  setup
  step "release build of what is tested"
  if [[ -n "$pattern" ]]; then
    run_tests -R "$pattern"
  else
    # tests/CMakeLists.txt has the labels.
    run_tests -L '^(unit|documents|quick)$' -LE '^slow$'
  fi
  exit
fi

step_total=10
# Tests take more random cases if TORCH_ATTENTION_NIGHTLY is set.
if [[ "$mode" == --nightly ]]; then
  step_total=13
  export TORCH_ATTENTION_NIGHTLY=1
fi
setup lint
step "tools of tests: MkDocs, tokenizers"
setup_test_tools
all_checks
step "release build"
build release
if [[ "$mode" == --nightly ]]; then
  step "ARM64"
  check_arm64
  random_checks
fi
step_done
say "Times:"
printf '%s' "$step_times"
step "tests of the release build"
# CTest's summary ends the output.
ctest --preset release --output-on-failure
