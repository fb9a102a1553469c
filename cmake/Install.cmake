# The installed package: headers, libraries, find_package(fovea COMPONENTS fovea tbb) and pkg-config's fovea and fovea-tbb.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fovea)

# Installs one library with its CMake targets and its .pc file.
function(fovea_install_library target component)
  install(TARGETS ${target} EXPORT ${component}-targets COMPONENT ${component}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(EXPORT ${component}-targets NAMESPACE fovea:: DESTINATION ${package_dir} COMPONENT ${component})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${component}.pc.in ${PROJECT_BINARY_DIR}/cmake/${component}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/cmake/${component}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT ${component})
endfunction()

# .pc files name folders relative to their own, so that an installed tree can be moved.
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
# A static library leaves it to programs to link a Highway that is not part of it.
set(pc_requires)
if(NOT FOVEA_HIGHWAY_FROM_SOURCE AND NOT BUILD_SHARED_LIBS)
  set(pc_requires libhwy)
endif()
# What a C linker lacks of the C++ libraries.
set(pc_libs_private ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(REMOVE_ITEM pc_libs_private ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})
list(TRANSFORM pc_libs_private PREPEND -l REGEX "^[^-/]")
list(JOIN pc_libs_private " " pc_libs_private)
file(GLOB headers ${PROJECT_SOURCE_DIR}/include/fovea/*.h)
set(tbb_headers ${PROJECT_SOURCE_DIR}/include/fovea/c_tbb.h ${PROJECT_SOURCE_DIR}/include/fovea/tbb.h)
list(REMOVE_ITEM headers ${tbb_headers} ${PROJECT_SOURCE_DIR}/include/fovea/embedded.h)
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fovea COMPONENT fovea)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fovea/detail DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fovea COMPONENT fovea FILES_MATCHING PATTERN "*.h")
fovea_install_library(fovea fovea)

# The header-only edition; its target is made, and xsimd looked for, only where a consumer asks for the component.
if(FOVEA_EMBEDDED)
  install(FILES ${PROJECT_SOURCE_DIR}/include/fovea/embedded.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fovea COMPONENT fovea)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fovea/embedded DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fovea COMPONENT fovea FILES_MATCHING PATTERN "*.h")
  install(TARGETS fovea_embedded EXPORT fovea-embedded-targets COMPONENT fovea)
  install(EXPORT fovea-embedded-targets NAMESPACE fovea:: DESTINATION ${package_dir} COMPONENT fovea)
endif()

# A oneTBB that was fetched is not installed, so neither is the library that needs it.
if(FOVEA_TBB AND TBB_FOUND)
  install(FILES ${tbb_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fovea COMPONENT fovea-tbb)
  if(BUILD_SHARED_LIBS)
    set(pc_requires_tbb "Requires.private")
  else()
    set(pc_requires_tbb "Requires")
  endif()
  fovea_install_library(fovea_tbb fovea-tbb)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fovea-config.cmake.in ${PROJECT_BINARY_DIR}/cmake/fovea-config.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/fovea-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/fovea-config.cmake ${PROJECT_BINARY_DIR}/cmake/fovea-config-version.cmake
  DESTINATION ${package_dir} COMPONENT fovea)

if(TARGET fovea_cli)
  install(TARGETS fovea_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
endif()
