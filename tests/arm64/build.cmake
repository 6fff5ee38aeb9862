# Cross-compiles the kernels and their tests for ARM64 into the folder BUILD.
execute_process(COMMAND "${CMAKE_COMMAND}" --preset arm64-kernels -B "${BUILD}"
                        COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD}"
                        COMMAND_ERROR_IS_FATAL ANY)
