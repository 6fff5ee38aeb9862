# The example is a project of its own.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/example_encoder")
configure(../../examples/encoder "${build}" "-DCMAKE_PREFIX_PATH=${prefix}"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch" -DCMAKE_UNITY_BUILD=ON
          -DCMAKE_BUILD_TYPE=Debug)
build("${build}")
run_built("${build}/encoder" search "${project_source_dir}/LICENSE" "a patent"
    --model "${golden_dir}/encoders/bert")
