# Without components comes the library alone, with `models` that of models, too.
# Another one that is required is refused by its name, one that is optional is
# not found.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/components")
set(arguments "-DCMAKE_PREFIX_PATH=${prefix}"
              "-DTorch_DIR=${libtorch}/share/cmake/Torch")
configure_fails(
  "Expected no component but models, but got \"cuda\": one library, TorchAttention::torch_attention, serves the CPU and every device that LibTorch has, and is there without COMPONENTS."
  components "${build}" ${arguments} "-DREQUIRED=cuda")
configure(components "${build}" ${arguments} "-DOPTIONAL=cuda")

configure(components "${build}" ${arguments} "-DREQUIRED=models")
build("${build}")
run_built("${build}/generator" "${golden_dir}/models/gpt2")

# An installation may be without it.
set(without "${binary_dir}/prefix_without_models")
file(REMOVE_RECURSE "${without}")
file(COPY "${prefix}/" DESTINATION "${without}")
file(REMOVE
     "${without}/${libdir}/cmake/TorchAttention/TorchAttentionModelsTargets.cmake")
list(APPEND arguments "-DCMAKE_PREFIX_PATH=${without}")
configure_fails("TorchAttention was installed without the component models."
                components "${build}" ${arguments} "-DREQUIRED=models")
file(REMOVE_RECURSE "${without}")
