# What a wheel of Python changes (pyproject.toml; scikit-build-core sets SKBUILD).
# Included before anything is looked for.
#
# A wheel holds a folder for each minor version of LibTorch, with what an
# installation has; the package chooses one when it is imported. Nothing in it
# names a folder of the machine that built it: LibTorch is the package `torch`
# next to it.

# The Python that installs the wheel, with the `torch` that will load it.
set(TORCH_ATTENTION_LIBTORCH_PYTHON "${Python_EXECUTABLE}")

# Stops with one sentence if libraries are missing. scripts/packages.sh says
# which ones the build needs, and what they are called.
function(torch_attention_check_packages)
  file(STRINGS "${PROJECT_SOURCE_DIR}/scripts/packages.sh" rows
       REGEX "^[^|]+\\|[^|]+\\|always\\|has_header [^|]+\\|[^|]+$")
  set(missing "")
  foreach(row ${rows})
    string(REGEX REPLACE "[| ]" ";" columns "${row}")
    list(GET columns 0 debian_name)
    list(GET columns 1 fedora_name)
    list(GET columns 4 header)
    find_path(_torch_attention_header "${header}" NO_CACHE)
    # The tests are not built.
    if(NOT _torch_attention_header AND NOT debian_name STREQUAL "catch2")
      string(REGEX REPLACE ".*\\|" "" name "${row}")
      list(APPEND missing "${name}")
      list(APPEND debian "${debian_name}")
      list(APPEND fedora "${fedora_name}")
    endif()
    unset(_torch_attention_header)
  endforeach()
  find_program(_torch_attention_pkg_config NAMES pkg-config pkgconf NO_CACHE)
  if(NOT _torch_attention_pkg_config)
    list(APPEND missing pkg-config)
    list(APPEND debian pkg-config)
    list(APPEND fedora pkgconf-pkg-config)
  endif()
  if(missing)
    list(JOIN missing ", " missing)
    list(JOIN debian " " debian)
    list(JOIN fedora " " fedora)
    message(
      FATAL_ERROR
        "torch-attention is compiled with libraries that are missing here: ${missing}. Debian and Ubuntu: apt-get install ${debian}. Fedora: dnf install ${fedora}."
    )
  endif()
endfunction()
torch_attention_check_packages()

# Sets the folders of an installation, for the LibTorch that was found. Paths
# from them to `torch` are those in the folder that pip installs to.
macro(torch_attention_set_up_wheel)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" TORCH_ATTENTION_WHEEL_FOLDER
               "${TORCH_ATTENTION_LIBTORCH_VERSION}")
  string(PREPEND TORCH_ATTENTION_WHEEL_FOLDER "libtorch-")
  set(CMAKE_INSTALL_BINDIR "${TORCH_ATTENTION_WHEEL_FOLDER}/bin")
  set(CMAKE_INSTALL_DATADIR "${TORCH_ATTENTION_WHEEL_FOLDER}/share")
  set(CMAKE_INSTALL_DOCDIR "${TORCH_ATTENTION_WHEEL_FOLDER}/doc")
  set(CMAKE_INSTALL_INCLUDEDIR "${TORCH_ATTENTION_WHEEL_FOLDER}/include")
  set(CMAKE_INSTALL_LIBDIR "${TORCH_ATTENTION_WHEEL_FOLDER}/lib")
  set(TORCH_ATTENTION_WHEEL_LIBTORCH_LIB "$ORIGIN/../../../torch/lib")
  set(TORCH_ATTENTION_WHEEL_HINT
      "\${CMAKE_CURRENT_LIST_DIR}/../../../../../torch")
endmacro()
