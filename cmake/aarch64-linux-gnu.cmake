# Toolchain: compiles for ARM64 Linux on another machine, with the cross compiler
# of Debian and Ubuntu (g++-aarch64-linux-gnu). Tests run under QEMU
# (qemu-user), on the processor that the variable QEMU_CPU names.
#
# The libraries of ARM64, as far as they are needed, are those of Debian's
# multiarch or of the folder TORCH_ATTENTION_ARM64_ROOT.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TORCH_ATTENTION_ARM64_ROOT)

set(root "${TORCH_ATTENTION_ARM64_ROOT}")
set(libraries "${root}/usr/lib/aarch64-linux-gnu")
# pkg-config would find the libraries of this machine.
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${root}")
set(ENV{PKG_CONFIG_LIBDIR} "${libraries}/pkgconfig")
# Where the C library is: the compiler's, or that of the folder.
set(loader /usr/aarch64-linux-gnu)
if(root)
  set(loader "${root}")
  set(CMAKE_FIND_ROOT_PATH "${root}")
  # The libraries that others need: Debian 12 has some of them in /lib.
  set(CMAKE_EXE_LINKER_FLAGS_INIT
      "-Wl,-rpath-link,${libraries}:${root}/lib/aarch64-linux-gnu")
endif()

find_program(TORCH_ATTENTION_QEMU NAMES qemu-aarch64 qemu-aarch64-static
             NO_CMAKE_FIND_ROOT_PATH)
if(TORCH_ATTENTION_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${TORCH_ATTENTION_QEMU};-L;${loader}")
endif()
