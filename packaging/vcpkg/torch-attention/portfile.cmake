# An overlay port, which builds the sources in which it is.
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
# Debug and release builds have one interface, and the program is needed once.
set(VCPKG_BUILD_TYPE release)

get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
vcpkg_find_acquire_program(PKGCONFIG)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DTORCH_ATTENTION_EXAMPLES=OFF
    -DTORCH_ATTENTION_TESTS=OFF
    "-DPKG_CONFIG_EXECUTABLE=${PKGCONFIG}"
    "-DTorch_DIR=${CURRENT_INSTALLED_DIR}/share/torch")
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME TorchAttention CONFIG_PATH lib/cmake/TorchAttention)
vcpkg_fixup_pkgconfig()
vcpkg_copy_tools(TOOL_NAMES torch-attention AUTO_CLEAN)

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage"
     DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/NOTICE"
                                  "${SOURCE_PATH}/THIRD_PARTY_NOTICES.md")
