# Functions that the scripts share.

include("${SETTINGS}")

# Runs a command; the test fails where it fails.
function(run)
  list(JOIN ARGN " " command)
  message(STATUS "${command}")
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Runs a program of the build, with its arguments: under an emulator where it is
# for another processor.
function(run_built)
  run(${emulator} ${ARGN})
endfunction()

# Configures a project in an empty folder. ARGN: arguments for CMake.
function(configure project build)
  file(REMOVE_RECURSE "${build}")
  run("${CMAKE_COMMAND}" -G "${generator}" -C
      "${binary_dir}/initial_cache.cmake" -S
      "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${project}" -B "${build}" ${ARGN})
endfunction()

# Runs a command that must fail with `message` in its output.
function(fails message)
  execute_process(
    COMMAND ${ARGN}
    RESULT_VARIABLE status
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  # CMake breaks lines.
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  string(FIND "${output}" "${message}" position)
  if(status EQUAL 0 OR position EQUAL -1)
    message(FATAL_ERROR "Expected to fail with\n  ${message}\nbut got exit "
                        "status ${status} and\n  ${output}")
  endif()
endfunction()

# Configures a project in an empty folder, which must fail with `message`.
function(configure_fails message project build)
  file(REMOVE_RECURSE "${build}")
  fails("${message}" "${CMAKE_COMMAND}" -G "${generator}" -C
        "${binary_dir}/initial_cache.cmake" -S
        "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${project}" -B "${build}" ${ARGN})
endfunction()

function(build build)
  run("${CMAKE_COMMAND}" --build "${build}")
endfunction()
