# What `cmake --install` lays down and cpack packs, in parts: the programs with their data, pages and completions; the
# modules for MPI, NCCL and HTTP; and fewbit_core and fewbit_formats for other projects (find_package(fewbit)). Nothing
# in it knows the prefix: the tree may be moved.
set(FEWBIT_PROGRAMS quantize evaluate runner convert)
install(TARGETS ${FEWBIT_PROGRAMS} RUNTIME DESTINATION bin COMPONENT programs)
install(DIRECTORY calib_data/ DESTINATION share/fewbit COMPONENT programs)
install(FILES README.md CHANGELOG.md LICENSE DESTINATION share/doc/fewbit COMPONENT programs)
install(DIRECTORY docs DESTINATION share/doc/fewbit COMPONENT programs)
# Pages and completions are printed by the programs that were just built.
foreach(program ${FEWBIT_PROGRAMS})
  install(CODE "
    set(root \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\")
    file(MAKE_DIRECTORY \"\${root}/man/man1\" \"\${root}/bash-completion/completions\")
    execute_process(COMMAND \"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program}\" --man
                    OUTPUT_FILE \"\${root}/man/man1/${program}.1\" COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND \"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program}\" --completion bash
                    OUTPUT_FILE \"\${root}/bash-completion/completions/${program}\" COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT programs)
endforeach()

# --- for other projects: fewbit::core and fewbit::formats ---------------------------------------------------------
foreach(part core formats flags fmt)
  set_target_properties(fewbit_${part} PROPERTIES EXPORT_NAME ${part})
endforeach()
install(TARGETS fewbit_core fewbit_formats fewbit_flags fewbit_fmt EXPORT fewbit
        ARCHIVE DESTINATION lib COMPONENT devel)
install(DIRECTORY src/core DESTINATION include/fewbit/src COMPONENT devel FILES_MATCHING PATTERN "*.h")
install(DIRECTORY formats DESTINATION include/fewbit COMPONENT devel
        FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
install(EXPORT fewbit NAMESPACE fewbit:: FILE fewbit-targets.cmake DESTINATION lib/cmake/fewbit COMPONENT devel)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/fewbit-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES scripts/cmake/fewbit-config.cmake ${CMAKE_BINARY_DIR}/fewbit-config-version.cmake
        DESTINATION lib/cmake/fewbit COMPONENT devel)
install(DIRECTORY examples DESTINATION share/doc/fewbit COMPONENT devel)

# --- packages: cpack -G DEB, cpack -G TGZ ---------------------------------------------------------------------------
set(CPACK_PACKAGE_NAME fewbit)
set(CPACK_PACKAGE_VENDOR fewbit)
set(CPACK_PACKAGE_CONTACT "the fewbit project <fewbit@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Quantizes, converts and verifies LLM checkpoints offline")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
# Not /usr: ImageMagick has a program named convert there.
set(CPACK_PACKAGING_INSTALL_PREFIX /opt/fewbit)
set(CPACK_COMPONENTS_ALL programs devel)
if(FEWBIT_HAS_MPI)
  list(APPEND CPACK_COMPONENTS_ALL mpi)
endif()
if(FEWBIT_HAS_NCCL)
  list(APPEND CPACK_COMPONENTS_ALL nccl)
endif()
if(HTTPLIB_FOUND)
  list(APPEND CPACK_COMPONENTS_ALL http)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME fewbit)
# It is loaded (kernels/cpu/blas_cpu.cpp), so that dpkg-shlibdeps does not see it.
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_DEPENDS libopenblas0)
set(CPACK_DEBIAN_DEVEL_PACKAGE_NAME fewbit-dev)
# What fewbit::core and fewbit::formats link, and what their headers include.
set(CPACK_DEBIAN_DEVEL_PACKAGE_DEPENDS "nlohmann-json3-dev, libpcre2-dev, libssl-dev, libxxhash-dev, libfmt-dev")
set(CPACK_DEBIAN_MPI_PACKAGE_NAME fewbit-mpi)
set(CPACK_DEBIAN_NCCL_PACKAGE_NAME fewbit-nccl)
set(CPACK_DEBIAN_HTTP_PACKAGE_NAME fewbit-http)
include(CPack)
