# The installed folder works under another name, its program too.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/moved_prefix")
install_into("${binary_dir}/before")
file(REMOVE_RECURSE "${binary_dir}/after")
file(RENAME "${binary_dir}/before" "${binary_dir}/after")

configure(find_package "${build}"
          "-DTorchAttention_DIR=${binary_dir}/after/${libdir}/cmake/TorchAttention"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch")
build("${build}")
run("${build}/consumer" "${golden}")
run("${binary_dir}/after/bin/torch-attention" --help)
