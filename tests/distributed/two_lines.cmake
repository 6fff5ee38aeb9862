# Runs ONE alone and MANY in 2 and 4 processes by LAUNCH: each process of these
# prints what the one does.
function(run result)
  execute_process(
    COMMAND ${ARGN}
    OUTPUT_VARIABLE output
    COMMAND_ERROR_IS_FATAL ANY)
  set(${result}
      "${output}"
      PARENT_SCOPE)
endfunction()

run(one "${ONE}")
if(NOT one MATCHES "step 4 loss [0-9.]+")
  message(FATAL_ERROR "The program printed no losses:\n${one}")
endif()
foreach(processes 2 4)
  run(many "${LAUNCH}" ${processes} "${MANY}")
  string(REPEAT "${one}" ${processes} expected)
  if(NOT many STREQUAL expected)
    message(FATAL_ERROR "One process printed\n${one}and ${processes}\n${many}")
  endif()
endforeach()
