# Finds LibTorch and defines the target TorchAttention::libtorch.
#
# LibTorch's own package stops if it is a CUDA build and the machine has no CUDA
# toolkit, though nothing here compiles CUDA: device work goes through ATen's
# dispatcher. So this looks only for LibTorch's headers and libraries.
#
# It looks in these places, in this order:
#   1. a LibTorch that the project has already found (target `torch`)
#   2. Torch_DIR (CMake variable, then environment)
#   3. CMAKE_PREFIX_PATH (CMake variable, then environment), system folders
#   4. the Python package `torch` of TORCH_ATTENTION_LIBTORCH_PYTHON, then of the
#      python3 on PATH
#   5. the Python package `torch` in .venv of TORCH_ATTENTION_VENV_PARENT
#   6. the folder TORCH_ATTENTION_LIBTORCH_HINT
# TORCH_ATTENTION_LIBTORCH_PYTHON serves the build of a wheel, number 5 the
# project's own build, number 6 the installed package. A build for another
# processor leaves out the Pythons, which are of this one.
#
# The first one found must have the version TORCH_ATTENTION_LIBTORCH_WANTED,
# such as 2.11, if that is set.
#
# Sets TORCH_ATTENTION_LIBTORCH_ROOT, TORCH_ATTENTION_LIBTORCH_VERSION and
# TORCH_ATTENTION_LIBTORCH_STANDARD, the C++ standard that its headers need. On
# failure, sets TORCH_ATTENTION_LIBTORCH_ERROR and defines no target.

# Finds the folder of the Python package `torch` without importing it. No
# variable such as PYTHONPATH is read where `python` is that of a wheel's build:
# pip hides the package by them.
function(_torch_attention_python_torch python result)
  set(isolated "")
  if(python STREQUAL "${TORCH_ATTENTION_LIBTORCH_PYTHON}")
    set(isolated -E)
  endif()
  execute_process(
    COMMAND
      "${python}" ${isolated} -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '', end='')"
    OUTPUT_VARIABLE root
    RESULT_VARIABLE status
    ERROR_QUIET)
  if(status EQUAL 0 AND EXISTS "${root}/share/cmake/Torch/TorchConfig.cmake")
    set(${result} "${root}" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

function(_torch_attention_libtorch_root result)
  if(TARGET torch AND TORCH_INSTALL_PREFIX)
    set(${result} "${TORCH_INSTALL_PREFIX}" PARENT_SCOPE)
    return()
  endif()
  # Not cached: another CMAKE_PREFIX_PATH must find another LibTorch.
  find_path(
    _torch_attention_config_dir TorchConfig.cmake
    PATHS "${Torch_DIR}" ENV Torch_DIR
    NO_DEFAULT_PATH NO_CACHE)
  find_path(
    _torch_attention_config_dir TorchConfig.cmake
    PATH_SUFFIXES share/cmake/Torch share/torch Torch
    NO_CACHE)
  if(_torch_attention_config_dir)
    # LibTorch has it in share/cmake/Torch, and vcpkg in share/torch.
    set(up "../../..")
    if(NOT _torch_attention_config_dir MATCHES "/cmake/[^/]+/?$")
      set(up "../..")
    endif()
    get_filename_component(root "${_torch_attention_config_dir}/${up}" ABSOLUTE)
    set(${result} "${root}" PARENT_SCOPE)
    return()
  endif()
  set(pythons "")
  if(NOT CMAKE_CROSSCOMPILING)
    find_program(_torch_attention_python python3 NO_CACHE)
    set(pythons "${TORCH_ATTENTION_LIBTORCH_PYTHON}" "${_torch_attention_python}")
    if(TORCH_ATTENTION_VENV_PARENT)
      list(APPEND pythons "${TORCH_ATTENTION_VENV_PARENT}/.venv/bin/python")
    endif()
  endif()
  foreach(python ${pythons})
    if(EXISTS "${python}")
      _torch_attention_python_torch("${python}" root)
      if(root)
        set(${result} "${root}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  if(NOT EXISTS
     "${TORCH_ATTENTION_LIBTORCH_HINT}/share/cmake/Torch/TorchConfig.cmake")
    set(TORCH_ATTENTION_LIBTORCH_HINT "")
  endif()
  set(${result} "${TORCH_ATTENTION_LIBTORCH_HINT}" PARENT_SCOPE)
endfunction()

# Reads the version that the headers state, such as 2.11.0.
function(_torch_attention_libtorch_version root result)
  foreach(header torch/headeronly/version.h
                 torch/csrc/api/include/torch/version.h)
    if(EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines
           REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE "[^0-9]+" ";" numbers "${lines}")
      list(FILTER numbers INCLUDE REGEX "^[0-9]+$")
      list(LENGTH numbers count)
      if(count EQUAL 3)
        list(JOIN numbers "." version)
        set(${result} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

function(_torch_attention_define_libtorch root)
  add_library(TorchAttention::libtorch INTERFACE IMPORTED GLOBAL)
  target_include_directories(
    TorchAttention::libtorch SYSTEM
    INTERFACE "${root}/include" "${root}/include/torch/csrc/api/include")
  target_link_libraries(
    TorchAttention::libtorch
    INTERFACE "${root}/lib/libtorch_cpu${_torch_attention_suffix}"
              "${root}/lib/libc10${_torch_attention_suffix}")
  target_compile_features(
    TorchAttention::libtorch
    INTERFACE "cxx_std_${TORCH_ATTENTION_LIBTORCH_STANDARD}")
  # Older wheels use the C++ library's old string layout, and say so here.
  set(config "${root}/share/cmake/Torch/TorchConfig.cmake")
  set(abi "")
  if(EXISTS "${config}")
    file(STRINGS "${config}" abi REGEX "_GLIBCXX_USE_CXX11_ABI=0")
  endif()
  if(abi)
    target_compile_definitions(TorchAttention::libtorch
                               INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
  endif()

  # Programs also need libtorch.so: it pulls in the CUDA backend, if there is
  # one, which registers itself when loaded and which nothing refers to by name.
  # The C++ library comes before it: LibTorch's wheels export parts of an older
  # std::filesystem, and a program that used these would crash.
  add_library(TorchAttention::libtorch_backends INTERFACE IMPORTED GLOBAL)
  if(APPLE)
    # The linker keeps libraries that nothing refers to.
    target_link_libraries(TorchAttention::libtorch_backends
                          INTERFACE "${root}/lib/libtorch.dylib")
  else()
    target_link_options(
      TorchAttention::libtorch_backends INTERFACE
      "LINKER:--push-state,--no-as-needed" -lstdc++ "${root}/lib/libtorch.so"
      "LINKER:--pop-state")
  endif()
endfunction()

function(_torch_attention_libtorch_error root version result)
  set(advice
      "set CMAKE_PREFIX_PATH to the folder that holds share/cmake/Torch/TorchConfig.cmake"
  )
  if(TORCH_ATTENTION_VENV_PARENT AND NOT CMAKE_CROSSCOMPILING)
    string(PREPEND advice "run ./scripts/verify.sh, which installs it, or ")
  elseif(TORCH_ATTENTION_LIBTORCH_PYTHON)
    string(PREPEND advice
           "install the package `torch` for ${TORCH_ATTENTION_LIBTORCH_PYTHON}, or ")
  endif()
  set(wanted "${TORCH_ATTENTION_LIBTORCH_WANTED}")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" found "${version}")
  set(error "")
  if(NOT root)
    set(error
        "LibTorch not found. Looked at Torch_DIR, CMAKE_PREFIX_PATH, and the Python package `torch` of the python3 on PATH. To help, ${advice}."
    )
  elseif(wanted AND NOT found STREQUAL wanted)
    set(error
        "Expected LibTorch ${wanted}, with which TorchAttention was built, but found LibTorch ${version} in ${root}. To use another one, ${advice}."
    )
  elseif(version VERSION_LESS 2.6)
    set(error
        "Expected LibTorch 2.6 or newer, but ${root} is \"${version}\". To use another one, leave that Python environment, or ${advice}.")
  elseif(NOT EXISTS "${root}/lib/libtorch_cpu${_torch_attention_suffix}")
    set(error
        "Expected LibTorch's shared libraries, but ${root}/lib has no libtorch_cpu${_torch_attention_suffix}."
    )
  endif()
  set(${result} "${error}" PARENT_SCOPE)
endfunction()

if(APPLE)
  set(_torch_attention_suffix .dylib)
else()
  set(_torch_attention_suffix .so)
endif()
set(TORCH_ATTENTION_LIBTORCH_ERROR "")
if(NOT TARGET TorchAttention::libtorch)
  _torch_attention_libtorch_root(TORCH_ATTENTION_LIBTORCH_ROOT)
  _torch_attention_libtorch_version("${TORCH_ATTENTION_LIBTORCH_ROOT}"
                                    TORCH_ATTENTION_LIBTORCH_VERSION)
  set(TORCH_ATTENTION_LIBTORCH_STANDARD 17)
  if(TORCH_ATTENTION_LIBTORCH_VERSION VERSION_GREATER_EQUAL 2.14)
    set(TORCH_ATTENTION_LIBTORCH_STANDARD 20)
  endif()
  _torch_attention_libtorch_error(
    "${TORCH_ATTENTION_LIBTORCH_ROOT}" "${TORCH_ATTENTION_LIBTORCH_VERSION}"
    TORCH_ATTENTION_LIBTORCH_ERROR)
  # Scripts (print_libtorch.cmake) cannot define targets.
  if(NOT TORCH_ATTENTION_LIBTORCH_ERROR AND NOT CMAKE_SCRIPT_MODE_FILE)
    _torch_attention_define_libtorch("${TORCH_ATTENTION_LIBTORCH_ROOT}")
  endif()
endif()
