# The Debian package has the libraries that it needs as dependencies, and serves
# find_package when it is unpacked.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(folder "${binary_dir}/debian_package")
file(REMOVE_RECURSE "${folder}")
run("${cpack}" -G DEB --config "${project_binary_dir}/CPackConfig.cmake" -B
    "${folder}")
file(GLOB package "${folder}/torch-attention_*.deb")

execute_process(
  COMMAND dpkg-deb --field "${package}" Depends
  OUTPUT_VARIABLE depends COMMAND_ERROR_IS_FATAL ANY)
foreach(name libc6 libdeflate0 libstdc\\+\\+6 libutf8proc[0-9]+ libzip[0-9] zlib1g)
  if(NOT depends MATCHES "(^|, )${name}")
    message(FATAL_ERROR "Expected a dependency on ${name}, but got ${depends}")
  endif()
endforeach()

run(dpkg-deb --extract "${package}" "${folder}/unpacked")
set(prefix "${folder}/unpacked/usr")
set(build "${folder}/build")
configure(find_package "${build}" "-DCMAKE_PREFIX_PATH=${prefix}"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch")
build("${build}")
run_built("${build}/consumer" "${golden}")
