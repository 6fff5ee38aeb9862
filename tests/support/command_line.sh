# For tests of a program's command line, which source this file after they set
# `program`: a folder that goes with them, and two functions.
# shellcheck shell=bash

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

# Runs the program; sets `out` and `err`. $1: the exit status that is expected.
run() {
  local wanted="$1" status=0
  shift
  # shellcheck disable=SC2154 # the test sets it
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
