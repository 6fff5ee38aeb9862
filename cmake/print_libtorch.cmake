# Prints the LibTorch that a build would take, for scripts: its folder, its
# version and what is wrong with it, a line each.
#   cmake -D TORCH_ATTENTION_VENV_PARENT=ROOT -P print_libtorch.cmake
cmake_minimum_required(VERSION 3.21)

# Scripts do not have the system folders of a build.
set(CMAKE_SYSTEM_PREFIX_PATH /usr/local /usr /)

include("${CMAKE_CURRENT_LIST_DIR}/TorchAttentionLibTorch.cmake")
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -E echo
    "${TORCH_ATTENTION_LIBTORCH_ROOT}\n${TORCH_ATTENTION_LIBTORCH_VERSION}\n${TORCH_ATTENTION_LIBTORCH_ERROR}"
)
