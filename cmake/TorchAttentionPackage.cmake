# Sets up CPack: `cpack -G DEB` in the build folder makes a Debian package of what
# `cmake --install` installs. LibTorch is not in it.

set(CPACK_PACKAGE_NAME torch-attention)
set(CPACK_PACKAGE_VENDOR "The TorchAttention authors")
set(CPACK_PACKAGE_CONTACT "${CPACK_PACKAGE_VENDOR}"
    CACHE STRING "Who makes packages: name and address")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
    "${PROJECT_DESCRIPTION} ${TORCH_ATTENTION_LIBTORCH_VERSION}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Expects LibTorch ${TORCH_ATTENTION_LIBTORCH_VERSION} in ${TORCH_ATTENTION_LIBTORCH_ROOT}, or where LD_LIBRARY_PATH says."
)
set(CPACK_PRE_BUILD_SCRIPTS
    "${PROJECT_SOURCE_DIR}/cmake/debian_dependencies.cmake")
include(CPack)
