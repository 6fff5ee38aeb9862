#!/usr/bin/env bash
# The program for ARM64 prints what the program of this machine prints: tokens of
# small models, tensors of files, the verdict on all reference cases.
#   program_test.sh PROGRAM_HERE GOLDEN_FOLDER COMMAND...
# COMMAND starts the program for ARM64: an emulator, its options and the program.

set -euo pipefail

here="$1"
golden="$2"
arm64=("${@:3}")
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

# Both succeed, and print the same.
compare() {
  "$here" "$@" >"$folder/here" 2>"$folder/errors"
  [[ -s "$folder/here" ]]
  "${arm64[@]}" "$@" >"$folder/arm64" 2>"$folder/errors" || {
    cat "$folder/errors" >&2
    printf 'expected exit status 0: %s\n' "$*" >&2
    exit 1
  }
  diff "$folder/here" "$folder/arm64" || {
    printf 'expected the output of this machine (<): %s\n' "$*" >&2
    exit 1
  }
  printf 'equal: %s\n' "$*"
}

"${arm64[@]}" --version >"$folder/version"
grep '^instruction set: NEON' "$folder/version" || {
  cat "$folder/version" >&2
  exit 1
}

models="$golden/models"
for model in qwen2 qwen3 llama_3_1 gemma3; do
  compare generate "$models/$model" --ids 5,6,7 --ids 8 --json \
    --max-new-tokens 24 --ignore-stop
done
compare inspect "$models/qwen3"
compare inspect "$models/qwen3" --json
compare inspect "$golden/mha-h4-8to8-bias-causal-f32-T8of8-train-p0.1.pt" --check

# The differences that it prints are of rounding.
"${arm64[@]}" verify "$golden"
