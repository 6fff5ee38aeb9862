# The library is shared: a build that asks for static ones is refused.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
configure_fails("TorchAttention is a shared library" ../..
                "${binary_dir}/static_library" -DBUILD_SHARED_LIBS=OFF)
