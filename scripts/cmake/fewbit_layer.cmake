# Headers that most sources of a target include, compiled once for all of them: a quarter of a source's time.
function(fewbit_precompile target)
  if(precompile AND ARGN)
    # From precompiled headers GCC 12 warns of its own library's strings, in code that has been inlined.
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow
                           -Wno-stringop-overread)
    target_precompile_headers(${target} PRIVATE ${ARGN} <fmt/format.h>)
  endif()
endfunction()

# Sources compiled eight at a time, in a build from nothing (FEWBIT_PRECOMPILE=ON): what they instantiate of the same
# headers, which is most of what they cost, is done once. Names of their anonymous namespaces must differ. Sources with
# options of their own are left alone by CMake.
function(fewbit_merge target)
  if(FEWBIT_PRECOMPILE STREQUAL "ON")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    # GCC warns of a class that uses an anonymous namespace in any file but the one it was given.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# fewbit_layer(NAME SOURCES ... DEPENDS ... [PRECOMPILE ...] [MERGE]): one static library per layer of
# docs/architecture.md.
function(fewbit_layer name)
  cmake_parse_arguments(L "MERGE" "" "SOURCES;DEPENDS;PRECOMPILE" ${ARGN})
  add_library(fewbit_${name} STATIC ${L_SOURCES})
  fewbit_precompile(fewbit_${name} ${L_PRECOMPILE})
  if(L_MERGE)
    fewbit_merge(fewbit_${name})
  endif()
  target_link_libraries(fewbit_${name} PUBLIC fewbit_flags PRIVATE fewbit_fmt)
  foreach(d ${L_DEPENDS})
    target_link_libraries(fewbit_${name} PUBLIC fewbit_${d})
  endforeach()
endfunction()

# fewbit_test(NAME LAYERS ... [LABELS ...] [PRECOMPILE ...] [ONE_THREAD] [MERGE]): one test program from
# tests/NAME/**/*_test.cpp, with little optimization: compiling tests takes longer than what it saves them. Every test
# case is its own ctest entry, so the closing count is one of cases. ONE_THREAD: whole runs, of which ctest has as many
# side by side as there are processors; with a thread for each processor they wait for each other, twice as long.
function(fewbit_test name)
  cmake_parse_arguments(T "ONE_THREAD;MERGE" "" "LAYERS;LABELS;PRECOMPILE" ${ARGN})
  set(environment)
  if(T_ONE_THREAD)
    set(environment ENVIRONMENT FEWBIT_THREADS=1)
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(test_${name} PRIVATE fewbit_test_support GTest::gtest_main fewbit_fmt
                        nlohmann_json::nlohmann_json)
  foreach(l ${T_LAYERS})
    target_link_libraries(test_${name} PRIVATE fewbit_${l})
  endforeach()
  target_compile_options(test_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  fewbit_precompile(test_${name} tests/support/support.h ${T_PRECOMPILE})
  if(T_MERGE)
    fewbit_merge(test_${name})
  endif()
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  gtest_discover_tests(test_${name} PROPERTIES LABELS "${T_LABELS}" ${environment} DISCOVERY_TIMEOUT 60
                       DISCOVERY_MODE PRE_TEST)
  add_dependencies(tests test_${name})
endfunction()
