#!/usr/bin/env bash
# Prints messages and steps; the other scripts source this file.

say() { printf '%s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

step_total=2 step_number=0 step_title="" step_start=0 step_times=""

# Ends the current step, and starts the next one.
step() {
  step_done
  step_number=$((step_number + 1))
  step_title="$1"
  step_start=$SECONDS
  say "[$step_number/$step_total] $step_title"
}

step_done() {
  [[ -n "$step_title" ]] || return 0
  local seconds=$((SECONDS - step_start))
  say "      done in $seconds s"
  step_times+="$(printf '%6d s  %s' "$seconds" "$step_title")"$'\n'
  step_title=""
}

# Prints the name of the failed step, even if `set -e` ends a script.
name_failed_step() {
  local status=$?
  if ((status != 0)) && [[ -n "$step_title" ]]; then
    printf 'FAILED in step %d/%d: %s (after %d s)\n' "$step_number" \
      "$step_total" "$step_title" $((SECONDS - step_start)) >&2
  fi
}
trap name_failed_step EXIT

# Runs a command with its output in a file, which is printed if it fails.
run_logged() {
  local log="$1" status=0
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 || status=$?
  if ((status != 0)); then
    tail -n 200 "$log" >&2
    printf 'error: "%s" failed. Its output: %s\n' "$*" "$log" >&2
  fi
  return "$status"
}
