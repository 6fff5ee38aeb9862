#!/usr/bin/env bash
# The program's exit statuses, streams and shell completion.
#   command_line_test.sh PROGRAM GOLDEN_FOLDER

set -euo pipefail

program="$1"
golden="$2"
# shellcheck source=tests/support/command_line.sh disable=SC1091
source "$(dirname "${BASH_SOURCE[0]}")/../support/command_line.sh"

run 0 --help
help="$out"
for command in verify inspect convert swap heatmap completion man; do
  expect "$help" "$command"
  run 0 "$command" --help
  expect "$out" "Example"
done
run 0 --version
expect "$out" "torch-attention 0."
expect "$out" $'\nLibTorch '
expect "$out" $'\ninstruction set: '
(
  export ATEN_CPU_CAPABILITY=default
  run 0 --version
  expect "$out" "instruction set: portable; LibTorch's: DEFAULT"
)

# A wrong command line: status 2, words on standard error.
run 2
run 2 unknown
expect "$err" 'there is no subcommand "unknown"'
[[ "$err" != *"Did you mean"* ]]
run 2 inspcet a.pt
expect "$err" 'there is no subcommand "inspcet". Did you mean inspect?'
run 2 verify "$golden" --num-head=3
expect "$err" "Did you mean --num-heads?"
# An option of a group, before a missing argument.
run 2 heatmap --token "the cat"
expect "$err" "Did you mean --tokens?"
run 2 bench --quick
expect "$err" "torch_attention_bench"
run 2 verify "$golden" --num-heads 0
expect "$err" 'expected a whole number from 1 on, but got "0"'
run 2 verify "$golden" --tokens many
expect "$err" 'but got "many"'
run 2 inspect $'\e[31mnone.pt'
expect "$err" '\x1b[31mnone.pt'
run 2 inspect "$folder/none.pt"
expect "$err" "none.pt"
run 2 convert "$golden/files/plain.safetensors"
expect "$err" "OUT"
bert="$golden/heatmap/bert"
run 2 heatmap "$bert" --out "$folder/a.html"
run 2 heatmap "$bert" --out "$folder/a.html" --tokens a --ids 1
run 2 heatmap "$bert" --tokens a
expect "$err" "--out"

# A file that cannot be read: status 1.
run 1 inspect "$golden/files/legacy.pt"
expect "$err" 'legacy.pt"): the file is a torch.save file of before'
[[ -z "$out" ]]
run 1 convert "$golden/layouts/bert.safetensors" "$folder/a.pt" --layout none
expect "$err" "none"
[[ ! -e "$folder/a.pt" ]]
run 1 convert "$golden/layouts/bert.safetensors" "$folder/a.pt" --dtype bf16
expect "$err" "bfloat16"

run 1 heatmap "$bert" --tokens a --layer 9 --out "$folder/a.html"
expect "$err" "a layer in [0, 3)"
[[ -z "$(find "$folder" -name 'a.html*')" ]]
for extension in html svg; do
  run 0 heatmap "$bert" --tokens "the cat" --out "$folder/a.$extension"
  expect "$out" "a.$extension: 3 layers of 4 heads, 4 tokens"
  [[ -s "$folder/a.$extension" ]]
done

run 0 convert "$golden/layouts/bert.safetensors" "$folder/a.pt" --layout book
expect "$out" "tensors"
run 0 inspect "$folder/a.pt" --check
expect "$out" "layout book"

# Output that cannot be written: status 1.
for command in --help "inspect $golden/files/plain.safetensors"; do
  status=0
  # shellcheck disable=SC2086 # a command and its argument
  "$program" $command >/dev/full 2>"$folder/err" || status=$?
  [[ "$status" == 1 ]]
  expect "$(cat "$folder/err")" "cannot write to standard output"
done

# A disk without room: status 1, and the file of before stays.
script="$golden/mha-h4-8to8-bias-causal-f32-T8of8-train-p0.1.pt"
run 0 swap "$script" "$folder/swapped.pt"
cp "$folder/swapped.pt" "$folder/before.pt"
(
  trap '' XFSZ
  ulimit -f 4
  run 1 swap "$script" "$folder/swapped.pt"
  expect "$err" "swapped.pt"
)
cmp "$folder/swapped.pt" "$folder/before.pt"
[[ -z "$(find "$folder" -name 'swapped.pt?*')" ]]

# Completion, in the shell itself.
run 0 completion bash
eval "$out"
COMP_WORDS=(torch-attention con)
COMP_CWORD=1
_torch_attention
[[ "${COMPREPLY[*]}" == convert ]]
COMP_WORDS=(torch-attention convert --lay)
COMP_CWORD=2
_torch_attention
[[ "${COMPREPLY[*]}" == --layout ]]
# Options of a group, too.
COMP_WORDS=(torch-attention heatmap --pre)
_torch_attention
[[ "${COMPREPLY[*]}" == --prefix ]]
run 0 completion zsh
expect "$out" "#compdef torch-attention"
if command -v zsh >/dev/null; then
  # As a file that is sourced, with the functions of zsh's completion in place.
  words="$(zsh -fc '
    compdef() { print -- "$@"; }
    compadd() { print "$@"; }
    _files() { print files; }
    source "$1"
    words=(torch-attention con) CURRENT=2
    _torch_attention
    words=(torch-attention convert --lay) CURRENT=3 PREFIX=--lay
    _torch_attention
    PREFIX=a
    _torch_attention' zsh "$folder/out")"
  expect "$words" "_torch_attention torch-attention"
  expect "$words" "inspect convert "
  expect "$words" "--layout "
  expect "$words" "files"
fi

# The manual page has all commands and options, and no line that man dislikes.
run 0 man
for text in '.SS heatmap' '\-\-num\-heads' '.SS completion'; do
  expect "$out" "$text"
done
if command -v man >/dev/null && command -v groff >/dev/null; then
  warnings="$(MANROFFSEQ='' LC_ALL=C.UTF-8 man --warnings=all -l "$folder/out" 2>&1 >/dev/null)"
  [[ -z "$warnings" ]]
fi
