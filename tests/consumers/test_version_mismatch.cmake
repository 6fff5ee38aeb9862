# Another LibTorch than the library was built with is refused by name.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" wanted "${libtorch_version}")
math(EXPR minor "${CMAKE_MATCH_2} + 1")
set(found "${CMAKE_MATCH_1}.${minor}")

set(fake "${binary_dir}/fake_libtorch")
# The folders of LibTorch's configuration: its own, and vcpkg's.
foreach(folder share/cmake/Torch share/torch)
  file(REMOVE_RECURSE "${fake}")
  file(WRITE "${fake}/${folder}/TorchConfig.cmake" "")
  file(WRITE "${fake}/lib/libtorch_cpu.so" "")
  file(
    WRITE "${fake}/include/torch/csrc/api/include/torch/version.h"
    "#define TORCH_VERSION_MAJOR ${CMAKE_MATCH_1}\n"
    "#define TORCH_VERSION_MINOR ${minor}\n" #
    "#define TORCH_VERSION_PATCH 0\n")
  foreach(argument "-DTorch_DIR=${fake}/${folder}"
                   "-DCMAKE_PREFIX_PATH=${fake}")
    configure_fails(
      "Expected LibTorch ${wanted}, with which TorchAttention was built, but found LibTorch ${found}.0 in ${fake}."
      find_package
      "${binary_dir}/version_mismatch"
      "-DTorchAttention_ROOT=${prefix}"
      "${argument}")
  endforeach()
endforeach()
