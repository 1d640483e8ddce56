# Hopper with its architecture-specific instructions (wgmma, setmaxnreg). CMake 3.25 does not know
# CUDA C++20, and its CUDA_ARCHITECTURES handling refuses some spellings, so both are said here once.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # a binary must start where there is no driver
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit REQUIRED)

# ptxas reports register spills and serialised wgmma as remarks; here they fail the build.
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/scripts/check_ptxas.py ${FOVEA_CCACHE})
