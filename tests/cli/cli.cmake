# Tests of the program and its parts. Included by tests/CMakeLists.txt.
#
# FOVEA_CLI_TEST_SOURCES     one test program each
# FOVEA_CLI_TEST_LIBRARIES   what they link besides GoogleTest
# The program's path reaches cli_test.cc as FOVEA_PROGRAM="$<TARGET_FILE:fovea_cli>", the captured tensors as FOVEA_TEST_DATA.
set(FOVEA_CLI_TEST_SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/args_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/heatmap_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/npy_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/safetensors_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/tensor_file_test.cc)
set(FOVEA_CLI_TEST_LIBRARIES fovea_files fovea_cli_parts)
