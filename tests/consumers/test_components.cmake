# The package has no components. One that is required is refused by its name,
# one that is optional is not found.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/components")
set(arguments "-DCMAKE_PREFIX_PATH=${prefix}"
              "-DTorch_DIR=${libtorch}/share/cmake/Torch")
configure_fails(
  "Expected no components, but got \"cuda\": one library, TorchAttention::torch_attention, serves the CPU and every device that LibTorch has. Leave out COMPONENTS."
  components "${build}" ${arguments} "-DREQUIRED=cuda")
configure(components "${build}" ${arguments} "-DOPTIONAL=cuda")
