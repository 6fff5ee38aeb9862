# The example is a project of its own.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/example_gpt")
configure(../../examples/gpt "${build}" "-DCMAKE_PREFIX_PATH=${prefix}"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch" -DCMAKE_UNITY_BUILD=ON
          -DCMAKE_BUILD_TYPE=Debug)
build("${build}")
run_built("${build}/gpt" logits "${golden_dir}/models/qwen3" --ids 5,6,7 --out
    "${build}/logits.safetensors")
