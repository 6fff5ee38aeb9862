# Includes between the folders of src, include and benchmarks go in the directions of
# CONTRIBUTING.md. Each folder lists what it may include beside itself, as
# regular expressions of paths; a single file would be an exception.
cmake_minimum_required(VERSION 3.21)

set(public "torch_attention/")
set(options "torch_attention/nn/options/")
set(functional "${options}|torch_attention/nn/functional/")

# The public headers.
set(may_include_include
    "torch_attention/([a-z_]+.h|distributed/|jit/|nn/|operators/|weights/)")
set(may_include_include/torch_attention/models "${public}")
set(may_include_include/torch_attention/nn "torch_attention/(nn/|export.h)")
set(may_include_include/torch_attention/nn/options
    "${options}|torch_attention/export.h")
set(may_include_include/torch_attention/nn/functional
    "${functional}|torch_attention/(export.h|nn/block_cache.h)")
set(may_include_include/torch_attention/weights
    "torch_attention/(export.h|nn/modules/|nn/options/|weights/)")

# The sources.
set(helpers
    "affixes.h|atomic_file.h|auto_tokenizer.h|check.h|config_file.h|descriptor.h|edit_distance.h|elementwise.h|error_message.h|escape.h|format_text.h|json.h|json_tree.h|large_pages.h|physical_memory.h|regular_file.h|undrawn_weights.h|utf8.h"
)
set(may_include_src "${public}|${helpers}")
set(may_include_src/device.cpp "check.h|cpu/attention.h|${public}")
set(may_include_src/cpu "cpu/|torch_attention/nn/options/score_rule.h")
set(may_include_src/kernels
    "check.h|cpu/|kernels/|torch_attention/same_bits.h|${options}")
set(may_include_src/nn
    "kernels/|nn/[a-z_]+.h|torch_attention/nn/|${helpers}")
set(may_include_src/nn/options "${options}")
set(may_include_src/nn/masks
    "cpu/mask_tiles.h|kernels/|nn/[a-z_]+.h|nn/masks/|${options}|${helpers}")
set(may_include_src/nn/functional
    "check.h|kernels/|nn/[a-z_]+.h|nn/functional/|torch_attention/same_bits.h|${functional}"
)
set(may_include_src/nn/modules
    "kernels/|nn/[a-z_]+.h|nn/functional/|nn/modules/|torch_attention/nn/|${helpers}"
)
set(may_include_src/nn/utils "check.h|kernels/|nn/utils/|torch_attention/nn/")
set(may_include_src/operators
    "check.h|kernels/|nn/checks.h|nn/functional/|operators/|${functional}|torch_attention/operators/"
)
set(may_include_src/jit
    "check.h|escape.h|jit/|operators/library.h|torch_attention/jit/")
# Modules only as torch::nn::Module.
set(may_include_src/weights
    "weights/|torch_attention/weights/|${options}|${helpers}")
set(may_include_src/distributed
    "distributed/|kernels/|nn/(cache_state|score_rule).h|nn/functional/|nn/modules/|weights/|torch_attention/(distributed|nn|weights)/|${helpers}"
)
# The headers that users can include.
set(may_include_src/models "models/|${public}|${helpers}")
set(may_include_src/tools "tools/|${public}|${helpers}")

# The benchmarks: what is measured knows the harness, and the harness nothing of it.
set(may_include_benchmarks
    "cases/|harness/|tools/(command_line|comparison|measure).h|${public}|${helpers}")
set(may_include_benchmarks/cases "cases/|harness/|${public}|${helpers}")
set(may_include_benchmarks/harness
    "harness/|tools/(comparison|measure).h|torch_attention/version.h|${helpers}")

# The names of the folders in includes.
set(ours "^(torch_attention")
file(GLOB entries RELATIVE "${ROOT}/src" "${ROOT}/src/*")
foreach(entry ${entries} cases harness)
  string(APPEND ours "|${entry}")
endforeach()
string(APPEND ours ")(/|$)")

set(wrong "")
set(count 0)
file(
  GLOB_RECURSE files
  RELATIVE "${ROOT}"
  "${ROOT}/benchmarks/*.cpp"
  "${ROOT}/benchmarks/*.h"
  "${ROOT}/include/*.h"
  "${ROOT}/src/*.cpp"
  "${ROOT}/src/*.h")
foreach(file ${files})
  set(place "${file}")
  while(NOT DEFINED "may_include_${place}")
    cmake_path(GET place PARENT_PATH place)
  endwhile()
  set(allowed "^(${may_include_${place}})")
  # The header of a source.
  string(REGEX REPLACE "^(src|include|benchmarks)/" "" own "${file}")
  cmake_path(REMOVE_EXTENSION own)
  file(STRINGS "${ROOT}/${file}" lines REGEX "^#include <")
  foreach(line ${lines})
    string(REGEX REPLACE "^#include <([^>]*)>.*" "\\1" included "${line}")
    if(NOT included MATCHES "${ours}")
      continue()
    endif()
    math(EXPR count "${count} + 1")
    if(NOT included MATCHES "${allowed}" AND NOT included STREQUAL
                                             "torch_attention/${own}.h")
      string(APPEND wrong "\n  ${file}: <${included}>")
    endif()
  endforeach()
endforeach()
if(wrong)
  message(FATAL_ERROR "These includes go against the directions:${wrong}")
endif()
# Fails where it reads nothing.
if(count LESS 500)
  message(FATAL_ERROR "Expected more than 500 includes, but got ${count}")
endif()
