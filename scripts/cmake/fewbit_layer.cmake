# fewbit_layer(NAME SOURCES ... DEPENDS ...): one static library per layer of docs/architecture.md.
function(fewbit_layer name)
  cmake_parse_arguments(L "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(fewbit_${name} STATIC ${L_SOURCES})
  target_link_libraries(fewbit_${name} PUBLIC fewbit_flags PRIVATE fewbit_fmt)
  foreach(d ${L_DEPENDS})
    target_link_libraries(fewbit_${name} PUBLIC fewbit_${d})
  endforeach()
endfunction()

# fewbit_test(NAME LAYERS ... [LABELS ...]): one test program from tests/NAME/**/*_test.cpp. Every test case is its own
# ctest entry, so the closing count is one of cases.
function(fewbit_test name)
  cmake_parse_arguments(T "" "" "LAYERS;LABELS" ${ARGN})
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
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  gtest_discover_tests(test_${name} PROPERTIES LABELS "${T_LABELS}" DISCOVERY_TIMEOUT 60
                       DISCOVERY_MODE PRE_TEST)
  add_dependencies(tests test_${name})
endfunction()
