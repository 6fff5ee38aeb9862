#!/usr/bin/env bash
# The exit statuses and files of torch_attention_bench, and two quick cases.
#   command_line_test.sh PROGRAM

set -euo pipefail

program="$1"
# shellcheck source=tests/support/command_line.sh disable=SC1091
source "$(dirname "${BASH_SOURCE[0]}")/../support/command_line.sh"

run 0 --help
expect "$out" "Example"
run 2 --threads 0
expect "$err" 'expected a whole number from 1 on, but got "0"'
run 2 --threadz 1
expect "$err" 'Did you mean --threads?'
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

# A program that computes beside it is seen.
timeout 100 yes >/dev/null &
busy=$!
run 0 --quick --only "module B2 T6"
kill "$busy"
expect "$out" "warning: other programs keep"

# Their outputs agree: without that, there would be no figures.
run 0 --quick --only "module B2 T6" --json "$folder/a.json" --csv "$folder/a.csv"
expect "$out" "roof: sgemm"
expect "$out" "SDPA module"
for text in '"machine"' '"share_of_roof"' '"problem": null'; do
  expect "$(cat "$folder/a.json")" "$text"
done
[[ "$(wc -l <"$folder/a.csv")" == 7 ]]
