# Installs for the other tests, and looks at what was installed. They find it
# under another name than it was installed by: it can be moved.

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(before "${binary_dir}/before_move")
file(REMOVE_RECURSE "${before}" "${prefix}")
run("${CMAKE_COMMAND}" --install "${project_binary_dir}" --prefix "${before}")
file(RENAME "${before}" "${prefix}")

set(library "${prefix}/${libdir}/libtorch_attention.so")
set(models_library "${prefix}/${libdir}/libtorch_attention_models.so")
foreach(
  file
  "${prefix}/include/torch_attention/export.h"
  "${prefix}/include/torch_attention/models/export.h"
  "${prefix}/include/torch_attention/torch_attention.h"
  "${prefix}/include/torch_attention/version.h"
  "${prefix}/${libdir}/cmake/TorchAttention/TorchAttentionConfig.cmake"
  "${prefix}/${libdir}/cmake/TorchAttention/TorchAttentionConfigVersion.cmake"
  "${prefix}/${libdir}/pkgconfig/torch_attention.pc"
  "${prefix}/${libdir}/pkgconfig/torch_attention_models.pc"
  "${prefix}/${docdir}/LICENSE"
  "${prefix}/${docdir}/NOTICE"
  "${prefix}/${docdir}/THIRD_PARTY_NOTICES.md"
  "${prefix}/share/man/man1/torch-attention.1"
  "${prefix}/share/bash-completion/completions/torch-attention"
  "${prefix}/share/zsh/site-functions/_torch-attention"
  "${library}"
  "${models_library}")
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()

# No file names the folders of the build, apart from LibTorch, which may lie in
# one.
file(GLOB_RECURSE files "${prefix}/*.cmake" "${prefix}/*.pc" "${prefix}/*.h")
foreach(file ${files})
  file(READ "${file}" text)
  string(REPLACE "${libtorch}" "" text "${text}")
  foreach(folder "${project_binary_dir}" "${project_source_dir}")
    string(FIND "${text}" "${folder}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${folder}")
    endif()
  endforeach()
endforeach()

# The libraries export their own names. Not looked at: weak ones, which are the
# instantiations of others' templates, and reserved ones.
foreach(file "${library}" "${models_library}")
  if(NOT nm)
    break()
  endif()
  execute_process(
    COMMAND "${nm}" -D -C --defined-only "${file}" OUTPUT_VARIABLE symbols
                                                   COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ [BDRT] [^\n]*" symbols "${symbols}")
  list(FILTER symbols EXCLUDE REGEX "^[0-9a-f]+ . (_|([a-z]+ )*torch_attention::)")
  if(symbols)
    list(JOIN symbols "\n " symbols)
    message(FATAL_ERROR "${file} exports:\n${symbols}")
  endif()
endforeach()
