# Decides whether this build has MPI (src/ranks/mpi_module.cpp): Open MPI or MPICH. FEWBIT_MPI=AUTO takes it when it is
# found and says so when not; ON makes its absence an error. Sets FEWBIT_HAS_MPI.
set(FEWBIT_HAS_MPI OFF)
if(FEWBIT_MPI STREQUAL "OFF")
  message(STATUS "fewbit: MPI off")
  return()
endif()
set(MPI_CXX_SKIP_MPICXX ON)  # the C interface alone
if(FEWBIT_MPI STREQUAL "ON")
  find_package(MPI REQUIRED COMPONENTS CXX)
else()
  find_package(MPI QUIET COMPONENTS CXX)
endif()
if(MPI_CXX_FOUND)
  set(FEWBIT_HAS_MPI ON)
  message(STATUS "fewbit: MPI ${MPI_CXX_VERSION} (${MPIEXEC_EXECUTABLE})")
else()
  message(STATUS "fewbit: building without MPI: none found (libopenmpi-dev has one)")
endif()
