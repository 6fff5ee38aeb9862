# The example is a project of its own.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/example_serve")
configure(../../examples/serve "${build}" "-DCMAKE_PREFIX_PATH=${prefix}"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch" -DCMAKE_UNITY_BUILD=ON
          -DCMAKE_BUILD_TYPE=Debug)
build("${build}")
file(WRITE "${build}/requests" [[{"id": "a", "tokens": [5, 6], "max_tokens": 3}]])
execute_process(
  COMMAND ${emulator} "${build}/serve" "${golden_dir}/models/qwen3"
  INPUT_FILE "${build}/requests"
  OUTPUT_VARIABLE answers COMMAND_ERROR_IS_FATAL ANY)
if(NOT answers MATCHES [["done":"length"]])
  message(FATAL_ERROR "expected an answer, but got ${answers}")
endif()
