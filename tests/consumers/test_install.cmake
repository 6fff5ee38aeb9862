# Installs for the other tests, and looks at what was installed.

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
install_into("${prefix}")

foreach(
  file
  bin/torch-attention
  include/torch_attention/export.h
  include/torch_attention/torch_attention.h
  include/torch_attention/version.h
  ${libdir}/libtorch_attention.so
  ${libdir}/cmake/TorchAttention/TorchAttentionConfig.cmake
  ${libdir}/cmake/TorchAttention/TorchAttentionConfigVersion.cmake
  ${libdir}/pkgconfig/torch_attention.pc)
  if(NOT EXISTS "${prefix}/${file}")
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()

# Files that name these folders would break when the installation is moved.
file(GLOB_RECURSE files "${prefix}/*.cmake" "${prefix}/*.pc" "${prefix}/*.h")
foreach(file ${files})
  file(READ "${file}" text)
  foreach(folder "${prefix}" "${project_binary_dir}/")
    # The LibTorch of the build may lie inside.
    string(REPLACE "${libtorch}" "" text "${text}")
    string(FIND "${text}" "${folder}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${folder}")
    endif()
  endforeach()
endforeach()

run("${prefix}/bin/torch-attention" --help)
