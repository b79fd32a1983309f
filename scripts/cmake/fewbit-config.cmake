# find_package(fewbit): fewbit::core (tensors, dtypes, errors) and fewbit::formats (containers, packings, checkpoints).
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(nlohmann_json)
include(${CMAKE_CURRENT_LIST_DIR}/fewbit-targets.cmake)
