# A project without cmake_minimum_required gets no warning from the package.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/no_minimum")
file(REMOVE_RECURSE "${build}")
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -Wdev -Wdeprecated -G "${generator}" -C
    "${binary_dir}/initial_cache.cmake" -S
    "${CMAKE_CURRENT_LIST_DIR}/no_minimum" -B "${build}"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DTorch_DIR=${libtorch}/share/cmake/Torch"
  ERROR_VARIABLE output
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
# CMake's own warning is that the project asks for no version.
string(REPLACE CMP0000 "" output "${output}")
foreach(text TorchAttention CMP0)
  string(FIND "${output}" "${text}" position)
  if(NOT position EQUAL -1)
    message(FATAL_ERROR "Expected no warning of the package, but got\n${output}")
  endif()
endforeach()
