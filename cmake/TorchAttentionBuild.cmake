# How our own targets are compiled: warnings, sanitizers, ccache, outputs.

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release)
  endif()
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  find_program(CCACHE ccache)
  if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Sloppiness: ccache takes no precompiled header without it.
    set(CMAKE_CXX_COMPILER_LAUNCHER
        "${CMAKE_COMMAND}" -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        "${CCACHE}")
  endif()
endif()

# Settings of every target that we compile.
add_library(torch_attention_build INTERFACE)
target_compile_options(
  torch_attention_build
  INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
            $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
# at::parallel_for is a header, and serial without.
find_package(OpenMP QUIET COMPONENTS CXX)
if(OpenMP_CXX_FOUND)
  # Not the target of CMake: it names a libgomp beside LibTorch's own.
  separate_arguments(openmp NATIVE_COMMAND "${OpenMP_CXX_FLAGS}")
  target_compile_options(torch_attention_build INTERFACE ${openmp})
  target_link_options(torch_attention_build INTERFACE ${openmp})
else()
  message(STATUS "No OpenMP found: the CPU kernels will use one thread")
endif()
if(TORCH_ATTENTION_SANITIZE)
  target_compile_options(
    torch_attention_build
    INTERFACE -fsanitize=${TORCH_ATTENTION_SANITIZE}
              -fno-sanitize-recover=all -fno-omit-frame-pointer
              # The instrumented C++ library sets off false ones.
              $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(torch_attention_build INTERFACE
                      -fsanitize=${TORCH_ATTENTION_SANITIZE})
endif()
if(TORCH_ATTENTION_COVERAGE)
  target_compile_options(torch_attention_build INTERFACE --coverage)
  target_link_options(torch_attention_build INTERFACE --coverage)
endif()

# Has the files of `target` that follow compiled as one where unity builds are
# on, as in the presets: LibTorch's headers cost seconds for each. Names in
# their anonymous namespaces must differ.
function(torch_attention_compile_together target group)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
endfunction()
