include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/find_package")
configure(find_package "${build}" "-DCMAKE_PREFIX_PATH=${prefix}"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch")
build("${build}")
run_built("${build}/consumer" "${golden}")
