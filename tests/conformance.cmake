# Tests against the cases and captured tensors of tests/data, and what reads them. Included by tests/CMakeLists.txt.
#
# FOVEA_TEST_SUPPORT_SOURCES      support library: needs GTest::gtest, nlohmann_json, fovea_reference, include directory tests/,
#                                 and FOVEA_TEST_DATA="…/tests/data" as a compile definition
# FOVEA_CONFORMANCE_TEST_SOURCES  one test program each
set(FOVEA_TEST_DATA ${CMAKE_CURRENT_LIST_DIR}/data)
set(FOVEA_TEST_SUPPORT_SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/support/cases.cc
  ${CMAKE_CURRENT_LIST_DIR}/support/compare.cc
  ${CMAKE_CURRENT_LIST_DIR}/support/manifest.cc
  ${CMAKE_CURRENT_LIST_DIR}/support/safetensors.cc)
set(FOVEA_CONFORMANCE_TEST_SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/compare_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/conformance_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/real_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/reference_conformance_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/reference_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/standard_attention_test.cc)
