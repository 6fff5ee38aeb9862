# Run by CPack when the files of a package are in their folder: finds the Debian
# packages that they need. CPACK_DEBIAN_PACKAGE_SHLIBDEPS would fail, since LibTorch
# is in no package.

if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
# dpkg-shlibdeps only works in the folder of a source package.
set(folder "${CPACK_TOPLEVEL_DIRECTORY}/dependencies")
file(WRITE "${folder}/debian/control"
     "Source: torch-attention\n\nPackage: torch-attention\nArchitecture: any\n")
file(GLOB_RECURSE files "${CPACK_TEMPORARY_DIRECTORY}/*.so"
     "${CPACK_TEMPORARY_DIRECTORY}/usr/bin/*")
list(TRANSFORM files PREPEND "-e")
execute_process(
  COMMAND dpkg-shlibdeps --ignore-missing-info -O
          "-l${CPACK_TEMPORARY_DIRECTORY}/usr/lib" ${files}
  WORKING_DIRECTORY "${folder}"
  OUTPUT_VARIABLE dependencies
  ERROR_VARIABLE error
  RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR NOT dependencies MATCHES "shlibs:Depends=([^\n]+)")
  message(FATAL_ERROR "dpkg-shlibdeps (of the package dpkg-dev) failed: ${status} ${error}")
endif()
set(CPACK_DEBIAN_PACKAGE_DEPENDS "${CMAKE_MATCH_1}")
