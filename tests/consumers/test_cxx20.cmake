# A program of a later C++ standard than the library's.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/cxx20")
configure(find_package "${build}" "-DCMAKE_PREFIX_PATH=${prefix}"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch"
          "-DCMAKE_CXX_STANDARD=${later_standard}")
build("${build}")
run_built("${build}/consumer" "${golden}")
