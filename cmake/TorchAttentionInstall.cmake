# Says which files `cmake --install` installs, and where. The installed folder
# can be moved: its files name each other by relative paths, and LibTorch is
# looked for again when a project is configured.

include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/TorchAttention")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TORCH_ATTENTION_LIBTORCH_WANTED
             "${TORCH_ATTENTION_LIBTORCH_VERSION}")

# The folder of the file that is loaded.
if(APPLE)
  set(origin "@loader_path")
else()
  set(origin "$ORIGIN")
endif()
# LibTorch is mostly in a virtual environment, where no loader looks. A wheel
# names its folders relative to its own.
set(libtorch_lib "${TORCH_ATTENTION_LIBTORCH_ROOT}/lib")
set(TORCH_ATTENTION_INSTALLED_HINT "${TORCH_ATTENTION_LIBTORCH_ROOT}")
if(SKBUILD)
  set(libtorch_lib "${TORCH_ATTENTION_WHEEL_LIBTORCH_LIB}")
  set(TORCH_ATTENTION_INSTALLED_HINT "${TORCH_ATTENTION_WHEEL_HINT}")
  # Wheels have no links: each name would be a copy of the library.
  foreach(library torch_attention torch_attention_models)
    if(TARGET ${library})
      set_property(TARGET ${library} PROPERTY VERSION)
      set_property(TARGET ${library} PROPERTY SOVERSION)
    endif()
  endforeach()
endif()
set_target_properties(torch_attention PROPERTIES INSTALL_RPATH
                                                 "${libtorch_lib}")
install(
  TARGETS torch_attention
  EXPORT TorchAttentionTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
if(TARGET torch_attention_models)
  set_target_properties(torch_attention_models
                        PROPERTIES INSTALL_RPATH "${origin};${libtorch_lib}")
  install(
    TARGETS torch_attention_models
    EXPORT TorchAttentionModelsTargets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
if(TORCH_ATTENTION_TOOLS)
  file(RELATIVE_PATH bin_to_lib "${CMAKE_INSTALL_FULL_BINDIR}"
       "${CMAKE_INSTALL_FULL_LIBDIR}")
  set_target_properties(
    torch-attention PROPERTIES INSTALL_RPATH
                               "${origin}/${bin_to_lib};${libtorch_lib}")
  install(TARGETS torch-attention RUNTIME DESTINATION
                                          "${CMAKE_INSTALL_BINDIR}")
  if(TORCH_ATTENTION_PROGRAM_FILES)
    install(DIRECTORY "${TORCH_ATTENTION_PROGRAM_FILES}/"
            DESTINATION "${CMAKE_INSTALL_DATADIR}")
  endif()
  if(SKBUILD)
    # For torch_attention.show.
    install(FILES "${TORCH_ATTENTION_PAGE}"
            DESTINATION "${CMAKE_INSTALL_DATADIR}/torch_attention")
  endif()
endif()

set(without_models "")
if(NOT TARGET torch_attention_models)
  set(without_models PATTERN models EXCLUDE)
endif()
install(
  DIRECTORY "${PROJECT_SOURCE_DIR}/include/" "${PROJECT_BINARY_DIR}/include/"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  ${without_models})
install(
  FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/NOTICE"
        "${PROJECT_SOURCE_DIR}/THIRD_PARTY_NOTICES.md"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# find_package(TorchAttention)
install(
  EXPORT TorchAttentionTargets
  NAMESPACE TorchAttention::
  DESTINATION "${package_dir}")
# find_package(TorchAttention COMPONENTS models)
if(TARGET torch_attention_models)
  install(
    EXPORT TorchAttentionModelsTargets
    NAMESPACE TorchAttention::
    DESTINATION "${package_dir}")
endif()
set(package_files "${PROJECT_BINARY_DIR}/package")
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/TorchAttentionConfig.cmake.in"
  "${package_files}/TorchAttentionConfig.cmake"
  INSTALL_DESTINATION "${package_dir}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  "${package_files}/TorchAttentionConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(
  FILES "${package_files}/TorchAttentionConfig.cmake"
        "${package_files}/TorchAttentionConfigVersion.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/TorchAttentionLibTorch.cmake"
  DESTINATION "${package_dir}")

# pkg-config; its files name LibTorch's folder, which a wheel does not know.
if(SKBUILD)
  return()
endif()
file(RELATIVE_PATH pkgconfig_to_prefix
     "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" pkgconfig_to_prefix "${pkgconfig_to_prefix}")
get_target_property(libtorch_definitions TorchAttention::libtorch
                    INTERFACE_COMPILE_DEFINITIONS)
set(pkgconfig_definitions "")
if(libtorch_definitions)
  list(TRANSFORM libtorch_definitions PREPEND " -D"
       OUTPUT_VARIABLE pkgconfig_definitions)
  list(JOIN pkgconfig_definitions "" pkgconfig_definitions)
endif()
set(pkgconfig_standard_library
    "-Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state ")
set(pkgconfig_backends
    "-Wl,--push-state,--no-as-needed,\${libtorch}/lib/libtorch.so,--pop-state")
if(APPLE)
  set(pkgconfig_standard_library "")
  set(pkgconfig_backends "\${libtorch}/lib/libtorch.dylib")
endif()
set(pkgconfig_names torch_attention)
if(TARGET torch_attention_models)
  list(APPEND pkgconfig_names torch_attention_models)
endif()
foreach(name ${pkgconfig_names})
  configure_file("cmake/${name}.pc.in" "${package_files}/${name}.pc" @ONLY)
  install(FILES "${package_files}/${name}.pc"
          DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endforeach()
