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

# One test for each file, of the program that has it. One CTest entry for each
# file: starting a program that loads LibTorch's CUDA libraries takes most of a
# second.
function(add_file_tests program)
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY
             "${PROJECT_SOURCE_DIR}/tests" OUTPUT_VARIABLE folder)
  foreach(file ${ARGN})
    cmake_path(GET file STEM name)
    cmake_path(SET test NORMALIZE "${folder}/${file}")
    string(REGEX REPLACE "_test.cpp$" "" test "${test}")
    string(REPLACE "/" "." test "${test}")
    # Tests that write a page of the docs are run by name.
    add_test(NAME ${test} COMMAND ${program} --filenames-as-tags
                                  "[#${name}]~[writes_page]")
    # Catch2 2 succeeds when it finds no test.
    set_tests_properties(
      ${test} PROPERTIES ENVIRONMENT "${test_environment}"
                         FAIL_REGULAR_EXPRESSION "No test cases matched"
                         # Tells scripts/test.sh what to build.
                         REQUIRED_FILES "$<TARGET_FILE:${program}>")
  endforeach()
endfunction()

# Labels tests that take more than ten seconds on two cores.
function(label_as_slow)
  set_property(
    TEST ${ARGN}
    APPEND
    PROPERTY LABELS slow)
endfunction()
