# A program that is built without CMake.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(program "${binary_dir}/pkg_config_consumer")
set(ENV{PKG_CONFIG_PATH} "${prefix}/${libdir}/pkgconfig")
execute_process(
  COMMAND "${pkg_config}" --cflags --libs torch_attention
  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
separate_arguments(compiler_flags UNIX_COMMAND "${compiler_flags}")
run("${compiler}" ${compiler_flags} -std=c++${standard}
    "${CMAKE_CURRENT_LIST_DIR}/find_package/main.cpp" -o "${program}" ${flags})
set(ENV{LD_LIBRARY_PATH} "${prefix}/${libdir}:$ENV{LD_LIBRARY_PATH}")
run("${program}" "${golden}")
