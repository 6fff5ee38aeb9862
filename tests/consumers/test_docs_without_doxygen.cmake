# Without Doxygen the target docs says what to install, and fails.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/docs_without_doxygen")
configure(
  ../.. "${build}" "-DTorch_DIR=${libtorch}/share/cmake/Torch" -DDOXYGEN=
  -DTORCH_ATTENTION_TESTS=OFF -DTORCH_ATTENTION_EXAMPLES=OFF
  -DTORCH_ATTENTION_TOOLS=OFF)
fails("needs Doxygen, which was not found. Install it" "${CMAKE_COMMAND}"
      --build "${build}" --target docs)
