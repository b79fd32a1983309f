# Decides whether this build has CUDA. FEWBIT_CUDA=AUTO takes it when an nvcc >= 12.4 that accepts the host compiler is
# found and says so when not; ON makes its absence an error. Sets FEWBIT_HAS_CUDA.
set(FEWBIT_HAS_CUDA OFF)
if(FEWBIT_CUDA STREQUAL "OFF")
  message(STATUS "fewbit: CUDA off")
  return()
endif()

find_program(FEWBIT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin PATH_SUFFIXES bin)
set(reason "")
if(NOT FEWBIT_NVCC)
  set(reason "no nvcc found")
else()
  execute_process(COMMAND ${FEWBIT_NVCC} --version OUTPUT_VARIABLE out ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" unused "${out}")
  if(CMAKE_MATCH_1 VERSION_LESS 12.4)
    set(reason "nvcc ${CMAKE_MATCH_1} is older than 12.4")
  else()
    file(WRITE ${CMAKE_BINARY_DIR}/nvcc_probe.cu "__global__ void k() {}\nint main() { return 0; }\n")
    execute_process(COMMAND ${FEWBIT_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -std=c++20 -gencode=arch=compute_90a,code=sm_90a
                            -c ${CMAKE_BINARY_DIR}/nvcc_probe.cu -o ${CMAKE_BINARY_DIR}/nvcc_probe.o
                    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE why)
    if(failed)
      string(REGEX REPLACE "\n.*" "" why "${why}")
      set(reason "nvcc does not accept ${CMAKE_CXX_COMPILER}: ${why}")
    endif()
  endif()
endif()
if(reason)
  if(FEWBIT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "fewbit: FEWBIT_CUDA=ON, but ${reason}")
  endif()
  message(STATUS "fewbit: building without CUDA: ${reason}")
  return()
endif()

set(CMAKE_CUDA_COMPILER ${FEWBIT_NVCC})
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CMAKE_CUDA_ARCHITECTURES OFF)  # the -gencode flags below say it all
enable_language(CUDA)
# CMake 3.25 does not know nvcc 13's C++20 flag.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit REQUIRED)
# sm_90a for Hopper's own instructions, sm_80 with its PTX for everything else.
string(APPEND CMAKE_CUDA_FLAGS " -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=[sm_80,compute_80]"
       " -lineinfo --expt-relaxed-constexpr -Xcompiler=-Wall -diag-suppress=20012")
set(FEWBIT_HAS_CUDA ON)
message(STATUS "fewbit: CUDA ${CUDAToolkit_VERSION} (sm_90a, sm_80, PTX)")
