#!/usr/bin/env bash
# Usage: scripts/site.sh [OUT [API]]
#
# Makes a static site of the pages: OUT/html/index.html, which needs no server.
# OUT is build/site by default. API is a folder with the API reference, which
# `cmake --build --preset release --target site` makes first and gives to this.
# Fails for a link that leads nowhere. Takes MkDocs from the Python of
# SITE_PYTHON, or else installs it (scripts/site/requirements.txt) below OUT.

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source-path=SCRIPTDIR source=steps.sh disable=SC1091
source "$ROOT/scripts/steps.sh"

case "${1:-}" in
  -h | --help) exec sed -n '2,/^$/s/^# \{0,1\}//p' "$0" ;;
esac
(($# <= 2)) || die "expected at most two folders. See scripts/site.sh --help"
out="${1:-$ROOT/build/site}"
mkdir -p "$out"

python="${SITE_PYTHON:-}"
if [[ -z "$python" ]]; then
  step "MkDocs"
  python="$out/venv/bin/python"
  requirements="$ROOT/scripts/site/requirements.txt"
  # The copy tells that the installation is complete.
  if ! cmp -s "$requirements" "$out/venv/requirements.txt"; then
    rm -rf "$out/venv"
    python3 -m venv "$out/venv"
    "$python" -m pip install --quiet --disable-pip-version-check --no-input \
      --only-binary :all: -r "$requirements"
    cp "$requirements" "$out/venv/requirements.txt"
  fi
fi
step "pages"
"$python" "$ROOT/scripts/site/stage.py" "$ROOT" "$out" "${@:2}"
# Without its messages MkDocs would not count them.
run_logged "$out/mkdocs.log" "$python" -m mkdocs build --strict --clean \
  -f "$out/mkdocs.yml"
{
  printf 'const searchIndex = '
  cat "$out/html/search/search_index.json"
} >"$out/html/search_index.js"
step_done
say "$out/html/index.html"
