# What the scripts share.

include("${SETTINGS}")

# Runs a command; the test fails where it fails.
function(run)
  list(JOIN ARGN " " command)
  message(STATUS "${command}")
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Configures a project in an empty folder. ARGN: arguments for CMake.
function(configure project build)
  file(REMOVE_RECURSE "${build}")
  run("${CMAKE_COMMAND}" -G "${generator}" -C
      "${binary_dir}/initial_cache.cmake" -S
      "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${project}" -B "${build}" ${ARGN})
endfunction()

function(build build)
  run("${CMAKE_COMMAND}" --build "${build}")
endfunction()
