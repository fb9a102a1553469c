# Tests of the program and its parts. Included by tests/CMakeLists.txt, and only where fovea_cli is built.
#
# FOVEA_CLI_TEST_SOURCES       one test program each
# FOVEA_CLI_TEST_LIBRARIES     what they link besides GoogleTest; none of them needs the library's test copy
# FOVEA_CLI_TEST_DEFINITIONS   for cli_test.cc, which also needs FOVEA_TEST_DATA (conformance.cmake) and fovea_cli built before it runs
set(FOVEA_CLI_TEST_SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/args_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/cli_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/heatmap_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/npy_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/safetensors_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/tensor_file_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/workload_test.cc)
set(FOVEA_CLI_TEST_LIBRARIES fovea_cli_parts fovea_files fovea_workloads nlohmann_json::nlohmann_json)
set(FOVEA_CLI_TEST_DEFINITIONS
  FOVEA_PROGRAM="$<TARGET_FILE:fovea_cli>"
  FOVEA_PROGRAM_HAS_TBB=$<BOOL:${FOVEA_TBB}>)
