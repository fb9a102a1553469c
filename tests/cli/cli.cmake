# Tests of the program and its parts. Included by tests/CMakeLists.txt; empty where the program is not built.
#
# FOVEA_CLI_TEST_SOURCES       one test program each
# FOVEA_CLI_TEST_LIBRARIES     what they link besides the tests' own
# FOVEA_CLI_TEST_DEFINITIONS   the program's command line for cli_test.cc, in front of which an emulator may stand
set(FOVEA_CLI_TEST_SOURCES)
set(FOVEA_CLI_TEST_LIBRARIES)
set(FOVEA_CLI_TEST_DEFINITIONS)
if(TARGET fovea_cli)
  set(FOVEA_CLI_TEST_SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/accuracy_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/args_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/cli_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/heatmap_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/machine_info_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/npy_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/roofline_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/safetensors_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/tensor_file_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/timing_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/workload_test.cc)
  set(FOVEA_CLI_TEST_LIBRARIES fovea_cli_parts fovea_files fovea_workloads)
  string(JOIN " " command ${CMAKE_CROSSCOMPILING_EMULATOR} "'$<TARGET_FILE:fovea_cli>'")
  set(FOVEA_CLI_TEST_DEFINITIONS
    FOVEA_PROGRAM="${command}"
    FOVEA_PROGRAM_IS_EMULATED=$<BOOL:${CMAKE_CROSSCOMPILING_EMULATOR}>
    FOVEA_PROGRAM_HAS_TBB=$<BOOL:${FOVEA_TBB}>)
endif()
