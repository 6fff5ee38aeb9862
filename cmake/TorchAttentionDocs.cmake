# The target `docs` and a test of the same name: the API reference, for which
# every warning is an error.

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
find_program(DOXYGEN doxygen)
if(NOT DOXYGEN)
  return()
endif()
set(TORCH_ATTENTION_DOCS_DIR "${PROJECT_BINARY_DIR}/docs")
configure_file("${PROJECT_SOURCE_DIR}/cmake/Doxyfile.in"
               "${PROJECT_BINARY_DIR}/Doxyfile" @ONLY)
add_custom_target(docs COMMAND "${DOXYGEN}" "${PROJECT_BINARY_DIR}/Doxyfile"
                       VERBATIM)
if(TORCH_ATTENTION_TESTS)
  add_test(NAME docs COMMAND "${DOXYGEN}" "${PROJECT_BINARY_DIR}/Doxyfile")
endif()
