# Public headers compile by themselves, without warnings.
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(build "${binary_dir}/headers")
configure(headers "${build}" "-DCMAKE_PREFIX_PATH=${prefix}"
          "-DTorch_DIR=${libtorch}/share/cmake/Torch"
          "-DCMAKE_CXX_STANDARD=${standard}"
          "-DHEADER_DIR=${prefix}/include/torch_attention")
build("${build}")
