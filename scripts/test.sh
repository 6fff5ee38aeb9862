#!/usr/bin/env bash
# All checks of the project. The quick ones come first, and the tests of the
# release build last, so that their summary ends the output.

set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=setup.sh disable=SC1091
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/test.sh [--quick | --all]

Runs all checks: format, golden files against Python, clang-tidy, the tests
under sanitizers, and the tests of the release build. Installs what is missing
(scripts/setup.sh). Stops at the first step that fails.

  --quick  only the release build and its tests
  --all    everything, and as many random programs as one waits for; the
           default leaves most of those out
  --help   this text

With CI=true in the environment a missing tool is an error; otherwise the check
that needs it is left out.
TEXT
}

# Leaves out a check whose tool is missing.
leave_out() {
  [[ "${CI:-}" != true ]] || die "$1"
  say "      LEFT OUT: $1"
}

# MkDocs and tokenizers, in a virtual environment that CMake finds: tests of the
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
    leave_out "tests/requirements.txt could not be installed: docs.site and example.gpt.tokens are missing."
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
  pattern="^$(printf '%s' "$ROOT/" | sed 's/[][\.*+?^$(){}|]/\\&/g')(build/tidy/)?src/"
  run_logged "$folder/clang-tidy.log" "$runner" \
    -clang-tidy-binary "$(command -v "$clang_tidy")" -quiet -p "$folder" \
    -j "$CMAKE_BUILD_PARALLEL_LEVEL" -extra-arg=-Wno-unknown-warning-option \
    "$pattern" || {
    # The findings lie far above the end of the log.
    grep -E '(warning|error): ' "$folder/clang-tidy.log" >&2
    return 1
  }
}

build() {
  local preset="$1"
  run_logged "$ROOT/build/setup/configure-$preset.log" cmake --preset "$preset"
  cmake --build --preset "$preset"
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

quick=""
while (($# > 0)); do
  case "$1" in
    --quick) quick=yes ;;
    # Read by tests/jit/swap_programs.py.
    --all) export TORCH_ATTENTION_RANDOM_PROGRAMS=2000 ;;
    -h | --help)
      usage
      exit
      ;;
    *) die "unknown argument \"$1\". See scripts/test.sh --help" ;;
  esac
  shift
done

cd "$ROOT"
if [[ -n "$quick" ]]; then
  step_total=4
  setup
else
  step_total=10
  setup lint
  step "tools of tests: MkDocs, tokenizers"
  setup_test_tools
  all_checks
fi
step "release build"
build release
step_done
say "Times:"
printf '%s' "$step_times"
step "tests of the release build"
# CTest's summary ends the output.
ctest --preset release --output-on-failure
