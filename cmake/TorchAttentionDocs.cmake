# Adds the targets `docs` and `site`, and tests of them: the API reference, for
# which every warning is an error, and a static site of the pages and the
# reference, for which every dead link is one. Without Doxygen the target `docs`
# says what to install, and the site is without the reference.

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

set(TORCH_ATTENTION_SITE_COMMAND "${PROJECT_SOURCE_DIR}/scripts/site.sh"
                                 "${PROJECT_BINARY_DIR}/site")
if(TORCH_ATTENTION_TESTS)
  # The target `site` installs MkDocs; a test uses what is there, or what
  # scripts/test.sh has installed.
  find_program(
    TORCH_ATTENTION_MKDOCS mkdocs
    HINTS "${PROJECT_SOURCE_DIR}/build/setup/test_tools/bin"
    DOC "MkDocs 1.6 or newer, for the test of the site")
  set(mkdocs_status 1)
  if(TORCH_ATTENTION_MKDOCS)
    cmake_path(GET TORCH_ATTENTION_MKDOCS PARENT_PATH mkdocs_bin)
    execute_process(
      COMMAND
        "${mkdocs_bin}/python3" -c
        "import mkdocs, pygments, sys; sys.exit([int(x) for x in mkdocs.__version__.split('.')[:2]] < [1, 6])"
      RESULT_VARIABLE mkdocs_status
      ERROR_QUIET)
  endif()
  if(mkdocs_status EQUAL 0)
    add_test(
      NAME docs.site
      COMMAND
        "${CMAKE_COMMAND}" -E env "SITE_PYTHON=${mkdocs_bin}/python3"
        "${PROJECT_SOURCE_DIR}/scripts/site.sh"
        "${PROJECT_BINARY_DIR}/site_test")
    # tests/CMakeLists.txt looks for it.
    if(TORCH_ATTENTION_CHROMIUM)
      set_tests_properties(docs.site PROPERTIES FIXTURES_SETUP docs.site)
      add_test(
        NAME docs.site_pages
        COMMAND
          "${TORCH_ATTENTION_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/docs/site.py"
          "${PROJECT_BINARY_DIR}/site_test/html" "${TORCH_ATTENTION_CHROMIUM}")
      set_tests_properties(docs.site_pages PROPERTIES FIXTURES_REQUIRED docs.site)
    endif()
  else()
    message(STATUS "No MkDocs 1.6 with Pygments found: without docs.site")
  endif()
endif()

find_program(DOXYGEN doxygen)
if(NOT DOXYGEN)
  add_custom_target(site COMMAND ${TORCH_ATTENTION_SITE_COMMAND} VERBATIM)
  add_custom_target(
    docs
    COMMAND
      "${CMAKE_COMMAND}" -E echo
      "The target docs needs Doxygen, which was not found. Install it (Debian and Ubuntu: apt install doxygen) and configure again."
    COMMAND "${CMAKE_COMMAND}" -E false
    VERBATIM)
  return()
endif()
set(TORCH_ATTENTION_DOCS_DIR "${PROJECT_BINARY_DIR}/docs")
configure_file("${PROJECT_SOURCE_DIR}/cmake/Doxyfile.in"
               "${PROJECT_BINARY_DIR}/Doxyfile" @ONLY)
add_custom_target(docs COMMAND "${DOXYGEN}" "${PROJECT_BINARY_DIR}/Doxyfile"
                       VERBATIM)
add_custom_target(
  site COMMAND ${TORCH_ATTENTION_SITE_COMMAND} "${TORCH_ATTENTION_DOCS_DIR}/html"
               VERBATIM)
add_dependencies(site docs)
if(TORCH_ATTENTION_TESTS)
  add_test(NAME docs COMMAND "${DOXYGEN}" "${PROJECT_BINARY_DIR}/Doxyfile")
  set_tests_properties(docs PROPERTIES FIXTURES_SETUP docs.html)
  # Doxygen 1.9 writes it where it garbles a comment (Doxyfile.in).
  add_test(NAME docs.no_garbled_comment
           COMMAND grep -rE "&(amp;)?zwj;" "${TORCH_ATTENTION_DOCS_DIR}/html")
  set_tests_properties(docs.no_garbled_comment PROPERTIES FIXTURES_REQUIRED
                                                          docs.html WILL_FAIL ON)
endif()
