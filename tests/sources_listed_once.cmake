# Each source is listed in one CMakeLists.txt, once: that of its folder, or the
# next one above.
cmake_minimum_required(VERSION 3.21)

set(wrong "")
foreach(folder benchmarks examples src tests)
  file(GLOB_RECURSE sources "${ROOT}/${folder}/*.cpp")
  # Projects of their own.
  list(FILTER sources EXCLUDE REGEX "/tests/consumers/")
  foreach(source ${sources})
    cmake_path(GET source PARENT_PATH place)
    while(NOT EXISTS "${place}/CMakeLists.txt")
      cmake_path(GET place PARENT_PATH place)
    endwhile()
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${place}" OUTPUT_VARIABLE
               name)
    file(READ "${place}/CMakeLists.txt" text)
    string(REGEX REPLACE "#[^\n]*" "" text "${text}")
    string(REPLACE "." "[.]" pattern "${name}")
    string(REGEX MATCHALL "[ \n(]${pattern}[ \n)]" found "${text}")
    list(LENGTH found count)
    if(NOT count EQUAL 1)
      string(APPEND wrong "\n  ${name}: ${count} times in ${place}")
    endif()
  endforeach()
endforeach()
if(wrong)
  message(FATAL_ERROR "Expected each source once, but got:${wrong}")
endif()
