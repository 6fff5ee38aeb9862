# Sets how our own targets are compiled: warnings, sanitizers, ccache, outputs.

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release)
  endif()
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  find_program(CCACHE ccache)
  if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # ccache refuses precompiled headers without this sloppiness. It has to go by
    # the files themselves: to `#pragma once` a header is another one if only its
    # comments changed, which what is preprocessed does not show.
    set(CMAKE_CXX_COMPILER_LAUNCHER
        "${CMAKE_COMMAND}" -E env CCACHE_DEPEND=true
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        "${CCACHE}")
  endif()
endif()

# The settings of every target that we compile.
add_library(torch_attention_build INTERFACE)
target_compile_options(
  torch_attention_build
  INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
            $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
            # LibTorch's assertions name their files: without the folders of the
            # machine that compiled them.
            "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/="
            "-fmacro-prefix-map=${TORCH_ATTENTION_LIBTORCH_ROOT}/include/=")
# at::parallel_for is defined in a header, and is serial without OpenMP.
set(libomp "${TORCH_ATTENTION_LIBTORCH_ROOT}/lib/libomp.dylib")
if(NOT APPLE)
  find_package(OpenMP QUIET COMPONENTS CXX)
endif()
if(APPLE AND EXISTS "${libomp}")
  # Apple's compiler brings no library of OpenMP, and LibTorch does.
  target_compile_options(torch_attention_build INTERFACE -Xclang -fopenmp)
  target_link_libraries(torch_attention_build INTERFACE "${libomp}")
elseif(OpenMP_CXX_FOUND)
  # CMake's target is not used: it links a libgomp beside LibTorch's own.
  separate_arguments(openmp NATIVE_COMMAND "${OpenMP_CXX_FLAGS}")
  target_compile_options(torch_attention_build INTERFACE ${openmp})
  target_link_options(torch_attention_build INTERFACE ${openmp})
else()
  message(STATUS "No OpenMP found: the CPU kernels will use one thread")
endif()
if(TORCH_ATTENTION_SANITIZE)
  # All targets but those with this property.
  set(sanitized
      "$<NOT:$<BOOL:$<TARGET_PROPERTY:TORCH_ATTENTION_NOT_SANITIZED>>>")
  # In targets with this property, objects' dynamic types are not checked.
  set(untyped "$<BOOL:$<TARGET_PROPERTY:TORCH_ATTENTION_TYPES_NOT_SANITIZED>>")
  target_compile_options(
    torch_attention_build
    INTERFACE "$<${sanitized}:-fsanitize=${TORCH_ATTENTION_SANITIZE}>"
              "$<${untyped}:-fno-sanitize=vptr>"
              -fno-sanitize-recover=all -fno-omit-frame-pointer
              # The instrumented C++ library causes false warnings.
              $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(TORCH_ATTENTION_SANITIZE MATCHES "address")
    # The address sanitizer notices these mistakes as well. Checked twice, the
    # kernels take a fifth longer to compile.
    target_compile_options(torch_attention_build
                           INTERFACE -fno-sanitize=null,object-size)
  endif()
  target_link_options(torch_attention_build INTERFACE
                      -fsanitize=${TORCH_ATTENTION_SANITIZE})
endif()
if(TORCH_ATTENTION_COVERAGE)
  target_compile_options(torch_attention_build INTERFACE --coverage)
  target_link_options(torch_attention_build INTERFACE --coverage)
endif()

# Compiles the sources of a folder for the library, each once. Where unity
# builds are on, as in the presets, they are compiled as one: that takes half of
# the time of ten at once, since what they use of LibTorch's templates is compiled
# once. Names in their anonymous namespaces must differ.
function(torch_attention_add_objects target)
  add_library(${target} OBJECT ${ARGN})
  torch_attention_set_up_objects(${target})
  target_precompile_headers(${target} REUSE_FROM torch_attention_common)
  set_property(GLOBAL APPEND PROPERTY TORCH_ATTENTION_OBJECTS
                                      "$<TARGET_OBJECTS:${target}>")
endfunction()

function(torch_attention_set_up_objects target)
  set_target_properties(
    ${target}
    PROPERTIES CXX_EXTENSIONS OFF
               CXX_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               POSITION_INDEPENDENT_CODE ON
               UNITY_BUILD_BATCH_SIZE 0)
  target_link_libraries(${target} PRIVATE torch_attention_needs
                                          torch_attention_build)
endfunction()
