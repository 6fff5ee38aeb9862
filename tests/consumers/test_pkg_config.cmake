# A program that is built without CMake.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

function(pkg_config_flags package kind result)
  set(ENV{PKG_CONFIG_PATH} "${prefix}/${libdir}/pkgconfig")
  execute_process(
    COMMAND "${pkg_config}" ${kind} ${package}
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE
                    COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  set(${result} ${flags} PARENT_SCOPE)
endfunction()

# Builds the program of a project, and runs it. ARGN: its arguments.
function(build_and_run package project)
  set(program "${binary_dir}/pkg_config_${package}")
  pkg_config_flags(${package} --cflags cflags)
  pkg_config_flags(${package} --libs libs)
  separate_arguments(compiler_flags UNIX_COMMAND "${compiler_flags}")
  run(${launcher} "${compiler}" ${compiler_flags} -std=c++${standard} ${cflags}
      -c "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${project}/main.cpp" -o
      "${program}.o")
  run("${compiler}" ${compiler_flags} "${program}.o" ${libs} -o "${program}")
  # The flags tell the loader where the libraries are.
  unset(ENV{LD_LIBRARY_PATH})
  run_built("${program}" ${ARGN})
endfunction()

build_and_run(torch_attention find_package "${golden}")
build_and_run(torch_attention_models components
              "${golden_dir}/models/gpt2")
