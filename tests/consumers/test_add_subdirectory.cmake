# The repository as a part of another project: it brings the library only, and
# models if they are wanted.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/add_subdirectory")
configure(
  add_subdirectory "${build}" "-DTorch_DIR=${libtorch}/share/cmake/Torch"
  "-DTORCH_ATTENTION_SOURCE_DIR=${project_source_dir}" -DCMAKE_UNITY_BUILD=ON)
build("${build}")
run_built("${build}/consumer" "${golden}")

run("${CMAKE_COMMAND}" -DCONSUMER_WANTS_MODELS=ON "${build}")
build("${build}")
run_built("${build}/generator" "${golden_dir}/models/gpt2")

run("${CMAKE_COMMAND}" --install "${build}" --prefix "${build}/prefix")
file(GLOB_RECURSE installed "${build}/prefix/*")
if(installed)
  message(FATAL_ERROR "installed, though nobody asked for it: ${installed}")
endif()
# Precompiled headers are large.
file(REMOVE_RECURSE "${build}")
