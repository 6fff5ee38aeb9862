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

configure_fails(
  "Expected LibTorch ${wanted}, with which TorchAttention was built, but found LibTorch ${found}.0 in ${fake}."
  find_package
  "${binary_dir}/version_mismatch"
  "-DCMAKE_PREFIX_PATH=${prefix}"
  "-DTorch_DIR=${fake}/share/cmake/Torch")
