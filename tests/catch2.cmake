# Finds Catch2 for programs of tests with and without LibTorch, and adds their
# tests.

# Catch2 3, or 2 where that is what the system has.
find_package(Catch2 3 QUIET)
if(NOT Catch2_FOUND)
  find_package(Catch2 2 REQUIRED)
endif()

add_library(torch_attention_catch2 INTERFACE)
target_link_libraries(torch_attention_catch2 INTERFACE torch_attention_build
                                                       Catch2::Catch2)
target_compile_features(torch_attention_catch2 INTERFACE cxx_std_17)
# Catch2's main has the C++ library's string layout that LibTorch has.
if(TARGET TorchAttention::libtorch)
  target_compile_definitions(
    torch_attention_catch2
    INTERFACE
      $<TARGET_PROPERTY:TorchAttention::libtorch,INTERFACE_COMPILE_DEFINITIONS>)
endif()

# Starting a program that loads LibTorch's CUDA libraries takes most of a second,
# and three with sanitizers: there one CTest entry runs so many files.
set(files_per_test 1)
if(TORCH_ATTENTION_SANITIZE)
  set(files_per_test 8)
endif()

# Adds the CTest entry `test` of files of the program: "folder.file", or
# "folder.file_and_others".
function(add_test_of_files program test files)
  set(chosen "")
  foreach(file ${files})
    cmake_path(GET file STEM name)
    # Tests that write a page of the docs are run by name.
    list(APPEND chosen "[#${name}]~[writes_page]")
  endforeach()
  list(JOIN chosen "," chosen)
  add_test(NAME ${test} COMMAND ${program} --filenames-as-tags "${chosen}")
  # Catch2 2 succeeds when it finds no test.
  set_tests_properties(
    ${test} PROPERTIES ENVIRONMENT "${test_environment}"
                       FAIL_REGULAR_EXPRESSION "No test cases matched"
                       # Tells scripts/test.sh what to build.
                       REQUIRED_FILES "$<TARGET_FILE:${program}>")
endfunction()

# Adds CTest entries of the program that has these files.
function(add_file_tests program)
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY
             "${PROJECT_SOURCE_DIR}/tests" OUTPUT_VARIABLE folder)
  set(some "")
  foreach(file ${ARGN})
    list(APPEND some "${file}")
    list(LENGTH some count)
    list(GET ARGN -1 last)
    if(count LESS files_per_test AND NOT file STREQUAL last)
      continue()
    endif()
    list(GET some 0 file)
    cmake_path(SET test NORMALIZE "${folder}/${file}")
    string(REGEX REPLACE "_test.cpp$" "" test "${test}")
    string(REPLACE "/" "." test "${test}")
    if(count GREATER 1)
      string(APPEND test _and_others)
    endif()
    add_test_of_files(${program} ${test} "${some}")
    set(some "")
  endforeach()
endfunction()

# Labels tests that take more than ten seconds on two cores.
function(label_as_slow)
  foreach(test ${ARGN})
    # With sanitizers it may be one of the others.
    if(TEST ${test})
      set_property(
        TEST ${test}
        APPEND
        PROPERTY LABELS slow)
    endif()
  endforeach()
endfunction()
