# Prints, for scripts, the LibTorch that a build would use: its folder, its
# version, the C++ standard that it needs and the error, one in each line.
#   cmake -D TORCH_ATTENTION_VENV_PARENT=ROOT -P print_libtorch.cmake
cmake_minimum_required(VERSION 3.21)

# Scripts lack the system folders that a build has.
set(CMAKE_SYSTEM_PREFIX_PATH /usr/local /usr /)

include("${CMAKE_CURRENT_LIST_DIR}/TorchAttentionLibTorch.cmake")
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -E echo
    "${TORCH_ATTENTION_LIBTORCH_ROOT}\n${TORCH_ATTENTION_LIBTORCH_VERSION}\n${TORCH_ATTENTION_LIBTORCH_STANDARD}\n${TORCH_ATTENTION_LIBTORCH_ERROR}"
)
