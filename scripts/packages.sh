#!/usr/bin/env bash
# The packages that the build and the tests need, how they are looked for, and
# how apt installs them; setup.sh sources this file.

CMAKE_MINIMUM=3.21
PYTHON_MINIMUM=3.10
LINT_VERSION=14

# The packages of Debian and Fedora, their kind, a command that checks that they
# are there, and a description, or the loss without them. Kinds: always; venv,
# to make a virtual environment; optional; lint, for scripts/test.sh.
packages() {
  cat <<TABLE
g++|gcc-c++|always|knows_cxx 17|a C++17 compiler (CXX chooses another)
cmake|cmake|always|has_cmake|CMake $CMAKE_MINIMUM or newer (another way: python3 -m pip install cmake)
ninja-build|ninja-build|always|has_command ninja|Ninja
pkg-config|pkgconf-pkg-config|always|has_command pkg-config|pkg-config
python3|python3|always|has_command python3|Python $PYTHON_MINIMUM or newer
catch2|catch-devel|always|has_header catch2/catch.hpp catch2/catch_all.hpp|Catch2 2.13 or newer
libfmt-dev|fmt-devel|always|has_header fmt/core.h|fmt
libcli11-dev|cli11-devel|always|has_header CLI/CLI.hpp|CLI11
libutf8proc-dev|utf8proc-devel|always|has_header utf8proc.h|utf8proc
libzip-dev|libzip-devel|always|has_header zip.h|libzip
libdeflate-dev|libdeflate-devel|always|has_header libdeflate.h|libdeflate
zlib1g-dev|zlib-devel|always|has_header zlib.h|zlib
nlohmann-json3-dev|json-devel|always|has_header nlohmann/json.hpp|nlohmann-json 3
libhwy-dev|highway-devel|always|has_header hwy/highway.h|Highway
python3-venv|python3|venv|base_python|Python $PYTHON_MINIMUM or newer with the modules venv and ensurepip
ccache|ccache|optional|has_command ccache|builds after the first one take longer
clang-format-$LINT_VERSION|clang-tools-extra|lint|lint_tool clang-format|the format check is left out
clang-tidy-$LINT_VERSION|clang-tools-extra|lint|lint_tool clang-tidy|clang-tidy is left out
g++-aarch64-linux-gnu|gcc-c++-aarch64-linux-gnu|lint|has_command aarch64-linux-gnu-g++|the tests arm64.* are left out
qemu-user|qemu-user|lint|has_qemu|the tests arm64.* are left out
chromium|chromium|lint|has_browser|the test tools.heatmap_page is left out
TABLE
}

# --- Checks ------------------------------------------------------------------

has_command() { command -v "$1" >/dev/null; }

# One of those that tests/tools/CMakeLists.txt looks for.
has_browser() {
  has_command chromium || has_command chromium-browser ||
    has_command google-chrome || has_command chrome
}

has_qemu() { has_command qemu-aarch64 || has_command qemu-aarch64-static; }

has_arm64_tools() { has_command aarch64-linux-gnu-g++ && has_qemu; }

has_cmake() {
  has_command cmake && printf '%s\n' "$CMAKE_MINIMUM" \
    "$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')" | sort -V -C
}

# Compiles a source from standard input, with the compiler that CMake uses.
compile() {
  local command=()
  # CXX may have arguments.
  read -ra command <<<"${CXX:-$(command -v c++ || command -v g++ || echo clang++)}"
  "${command[@]}" "$@" -x c++ - 2>/dev/null
}

knows_cxx() { compile "-std=c++$1" -fsyntax-only <<<'#include <optional>'; }

# Tells whether one of two headers is there.
has_header() {
  local prefix prefixes=() options=()
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    options+=("-I$prefix/include")
  done
  printf '#if !__has_include(<%s>) && !__has_include(<%s>)\n#error\n#endif\n' \
    "$1" "${2:-$1}" | compile -std=c++17 -E "${options[@]}"
}

# Prints the command of clang-format or clang-tidy in our version.
lint_tool() {
  if has_command "$1-$LINT_VERSION"; then
    say "$1-$LINT_VERSION"
  else
    "$1" --version 2>/dev/null | grep -q "version $LINT_VERSION\." && say "$1"
  fi
}

# Prints the first of several Pythons that is new enough and has the modules $1.
python_with() {
  local python
  for python in "${@:2}"; do
    # In /, since Python would import a folder "torch" of the current one.
    ! (cd / && "$python" -c '
import importlib.util, sys
minimum, modules = sys.argv[1:]
new = sys.version_info[:2] >= tuple(map(int, minimum.split(".")))
sys.exit(not (new and all(map(importlib.util.find_spec, modules.split(",")))))
' "$PYTHON_MINIMUM" "$1" 2>/dev/null) || { say "$python" && return; }
  done
  return 1
}

# One that can make virtual environments. The active Python may be in one
# itself, and broken; Debian leaves these modules out of python3.
base_python() { python_with venv,ensurepip python3 /usr/bin/python3; }

# --- Packages ----------------------------------------------------------------

# Prints a column (debian, fedora or text) of the missing packages of kinds.
# shellcheck disable=SC2034 # read by their names
missing() {
  local debian fedora kind check text
  while IFS='|' read -r debian fedora kind check text; do
    # shellcheck disable=SC2086 # a command and its arguments
    [[ " ${*:2} " != *" $kind "* ]] || $check >/dev/null || say "${!1}"
  done < <(packages)
}

# Runs apt-get as root.
apt_get() {
  local sudo=()
  ((EUID == 0)) || sudo=(sudo)
  run_logged "$ROOT/build/setup/apt-get.log" "${sudo[@]}" env \
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}

# Tells whether apt-get can run. Asks for a password, on a terminal, only if a
# package of the kind $1 is missing.
can_install() {
  has_command apt-get &&
    { ((EUID == 0)) || sudo -n true 2>/dev/null ||
      { [[ -n "$(missing debian "$1")" && -t 0 && -t 2 ]] && sudo -v; }; }
}

# Installs the missing packages of kinds. Fails if one of the first kind is
# missing then.
provide() {
  local package known=()
  if [[ -n "$(missing debian "$@")" ]] && can_install "$1"; then
    # If the package lists cannot be updated, the old ones may be enough.
    apt_get update || true
    for package in $(missing debian "$@"); do
      ! apt-cache show "$package" >/dev/null 2>&1 || known+=("$package")
    done
    say "      installing: ${known[*]:-nothing that apt knows}" >&2
    apt_get install --no-install-recommends -y "${known[@]}" || true
  fi
  [[ -z "$(missing text "$1")" ]]
}

# Provides the tools and libraries; with "lint", also those of test.sh.
setup_tools() {
  [[ "$(uname -s)" == Linux ]] || die "expected Linux, but this is $(uname -s)."
  provide always optional "$@" || die "missing or too old:
$(missing text always | sed 's/^/  - /')
Install them, then run this again. In Debian and Ubuntu:
  apt-get update && apt-get install --no-install-recommends -y $(missing debian always | xargs)
In Fedora:
  dnf install -y $(missing fedora always | xargs)"
  missing text optional "$@" | sed 's/^/      note: a tool was not found: /'
}
