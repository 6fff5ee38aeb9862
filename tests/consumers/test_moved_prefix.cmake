# The installation works under another name than it was installed by: the
# package, named by its folder, and the program.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
if(EXISTS "${binary_dir}/before_move")
  message(FATAL_ERROR "the installation was not moved")
endif()
set(build "${binary_dir}/moved_prefix")
configure(find_package "${build}"
          "-DTorchAttention_DIR=${prefix}/${libdir}/cmake/TorchAttention"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch")
build("${build}")
run_built("${build}/consumer" "${golden}")
if(EXISTS "${prefix}/bin/torch-attention")
  run_built("${prefix}/bin/torch-attention" --help)
endif()
