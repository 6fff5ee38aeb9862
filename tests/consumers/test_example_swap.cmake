# The example is a project of its own.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/example_swap")
configure(../../examples/swap "${build}" "-DCMAKE_PREFIX_PATH=${prefix}"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch" -DCMAKE_UNITY_BUILD=ON
          -DCMAKE_BUILD_TYPE=Debug)
build("${build}")
run_built("${build}/swap_modules" "${build}/weights.pt")
run_built("${build}/swap_torchscript" "${build}/model.pt")
