#!/usr/bin/env bash
# The exit statuses and files of torch_attention_bench, and two quick cases.
#   command_line_test.sh PROGRAM

set -euo pipefail

program="$1"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

# Runs the program; sets `out` and `err`. $1: the exit status that is expected.
run() {
  local wanted="$1" status=0
  shift
  "$program" "$@" >"$folder/out" 2>"$folder/err" || status=$?
  out="$(cat "$folder/out")"
  err="$(cat "$folder/err")"
  if ((status != wanted)); then
    printf 'expected status %d but got %d: %s\n%s\n%s\n' "$wanted" "$status" \
      "$*" "$out" "$err" >&2
    exit 1
  fi
}

expect() {
  if [[ "$1" != *"$2"* ]]; then
    printf 'expected "%s" in:\n%s\n' "$2" "$1" >&2
    exit 1
  fi
}

run 0 --help
expect "$out" "Example"
run 2 --threads 0
expect "$err" 'expected a whole number from 1 on, but got "0"'
run 2 --unknown
run 1 --only "no such case"
expect "$err" 'no case has "no such case" in its name'
run 1 --only "module B2 T6" --json "$folder/none/a.json"
expect "$err" "cannot write"

run 0 --list
for kind in module wrapper attention decode mask grouped model; do
  expect $'\n'"$out" $'\n'"$kind "
done
run 0 --list --series
expect "$out" "series module B1 T16384"

# Their outputs agree: without that, there would be no figures.
run 0 --quick --only "module B2 T6" --json "$folder/a.json" --csv "$folder/a.csv"
expect "$out" "roof: sgemm"
expect "$out" "SDPA module"
for text in '"machine"' '"share_of_roof"' '"problem": null'; do
  expect "$(cat "$folder/a.json")" "$text"
done
[[ "$(wc -l <"$folder/a.csv")" == 7 ]]
