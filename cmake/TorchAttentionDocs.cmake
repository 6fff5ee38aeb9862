# The target `docs` and a test of the same name: the API reference, for which
# every warning is an error.

find_program(DOXYGEN doxygen)
if(NOT DOXYGEN)
  return()
endif()
set(TORCH_ATTENTION_DOCS_DIR "${PROJECT_BINARY_DIR}/docs")
configure_file("${PROJECT_SOURCE_DIR}/cmake/Doxyfile.in"
               "${PROJECT_BINARY_DIR}/Doxyfile" @ONLY)
set(doxygen_command
    "${CMAKE_COMMAND}" -E make_directory "${TORCH_ATTENTION_DOCS_DIR}" COMMAND
    "${DOXYGEN}" "${PROJECT_BINARY_DIR}/Doxyfile")
add_custom_target(docs COMMAND ${doxygen_command} VERBATIM)
if(TORCH_ATTENTION_TESTS)
  add_test(NAME docs COMMAND "${DOXYGEN}" "${PROJECT_BINARY_DIR}/Doxyfile")
endif()
