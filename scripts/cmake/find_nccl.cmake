# Decides whether this build has NCCL (src/ranks/nccl_module.cpp), for ranks on GPUs: FEWBIT_NCCL=AUTO takes it when it
# is found beside CUDA, in the system or in FEWBIT_NCCL_DIR (a folder with include/ and lib/, such as nvidia/nccl of a
# Python package), and says so when not; ON makes its absence an error. Sets FEWBIT_HAS_NCCL.
set(FEWBIT_HAS_NCCL OFF)
if(NOT FEWBIT_HAS_CUDA OR FEWBIT_NCCL STREQUAL "OFF")
  if(FEWBIT_NCCL STREQUAL "ON")
    message(FATAL_ERROR "fewbit: FEWBIT_NCCL=ON, but the build has no CUDA")
  endif()
  return()
endif()
find_path(FEWBIT_NCCL_INCLUDE nccl.h HINTS ${FEWBIT_NCCL_DIR} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(FEWBIT_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${FEWBIT_NCCL_DIR} ${CUDAToolkit_LIBRARY_DIR}
             PATH_SUFFIXES lib lib64)
if(FEWBIT_NCCL_INCLUDE AND FEWBIT_NCCL_LIBRARY)
  set(FEWBIT_HAS_NCCL ON)
  message(STATUS "fewbit: NCCL ${FEWBIT_NCCL_LIBRARY}")
elseif(FEWBIT_NCCL STREQUAL "ON")
  message(FATAL_ERROR "fewbit: FEWBIT_NCCL=ON, but nccl.h or libnccl.so is not found; -DFEWBIT_NCCL_DIR=DIR names it")
else()
  message(STATUS "fewbit: building without NCCL: none found (libnccl-dev has one; -DFEWBIT_NCCL_DIR=DIR names it)")
endif()
