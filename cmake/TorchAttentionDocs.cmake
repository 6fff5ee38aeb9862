# Adds the target `docs` and a test of the same name: the API reference, for
# which every warning is an error. Without Doxygen the target says what to
# install.

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
find_program(DOXYGEN doxygen)
if(NOT DOXYGEN)
  add_custom_target(
    docs
    COMMAND
      "${CMAKE_COMMAND}" -E echo
      "The target docs needs Doxygen, which was not found. Install it (Debian and Ubuntu: apt install doxygen) and configure anew."
    COMMAND "${CMAKE_COMMAND}" -E false
    VERBATIM)
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
