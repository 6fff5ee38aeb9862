# Another LibTorch than the library was built with is refused by name.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" wanted "${libtorch_version}")
math(EXPR minor "${CMAKE_MATCH_2} + 1")
set(found "${CMAKE_MATCH_1}.${minor}")

set(fake "${binary_dir}/fake_libtorch")
file(REMOVE_RECURSE "${fake}")
file(WRITE "${fake}/share/cmake/Torch/TorchConfig.cmake" "")
file(WRITE "${fake}/lib/libtorch_cpu.so" "")
file(
  WRITE "${fake}/include/torch/csrc/api/include/torch/version.h"
  "#define TORCH_VERSION_MAJOR ${CMAKE_MATCH_1}\n"
  "#define TORCH_VERSION_MINOR ${minor}\n" #
  "#define TORCH_VERSION_PATCH 0\n")

set(build "${binary_dir}/version_mismatch")
file(REMOVE_RECURSE "${build}")
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -G "${generator}" -C "${binary_dir}/initial_cache.cmake"
    -S "${CMAKE_CURRENT_LIST_DIR}/find_package" -B "${build}"
    "-DCMAKE_PREFIX_PATH=${prefix}"
    "-DTorch_DIR=${fake}/share/cmake/Torch"
  RESULT_VARIABLE status
  ERROR_VARIABLE output
  OUTPUT_QUIET)
# CMake breaks lines.
string(REGEX REPLACE "[ \n]+" " " output "${output}")
set(message
    "Expected LibTorch ${wanted}, with which TorchAttention was built, but found LibTorch ${found}.0 in ${fake}."
)
string(FIND "${output}" "${message}" position)
if(status EQUAL 0 OR position EQUAL -1)
  message(FATAL_ERROR "Expected to fail with\n  ${message}\nbut got exit "
                      "status ${status} and\n  ${output}")
endif()
