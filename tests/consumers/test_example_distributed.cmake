# The example is a project of its own, with the models of the one beside it.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/example_distributed")
configure(../../examples/distributed "${build}" "-DCMAKE_PREFIX_PATH=${prefix}"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch" -DCMAKE_UNITY_BUILD=ON
          -DCMAKE_BUILD_TYPE=Debug)
run("${CMAKE_COMMAND}" --build "${build}" --target train_together)
run_built("${project_binary_dir}/bin/torch_attention_launch" 2
    "${build}/train_together" "${project_source_dir}/LICENSE" --tensor 2 --steps
    1)
