# What measures, shared by the benchmarks here and by the fovea program:
#   fovea_roofline    peaks, bandwidth and timing; knows nothing of attention and needs no library
#   fovea_workloads   the shapes that are measured, their tensors, and the check of results against the reference
include_guard(GLOBAL)
find_package(Threads REQUIRED)

add_library(fovea_roofline STATIC
  ${CMAKE_CURRENT_LIST_DIR}/roofline.cc
  ${CMAKE_CURRENT_LIST_DIR}/roofline_neon.cc
  ${CMAKE_CURRENT_LIST_DIR}/roofline_x86.cc
  ${CMAKE_CURRENT_LIST_DIR}/timing.cc)
target_compile_features(fovea_roofline PUBLIC cxx_std_17)
target_include_directories(fovea_roofline PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(fovea_roofline PUBLIC Threads::Threads)

add_library(fovea_workloads STATIC
  ${CMAKE_CURRENT_LIST_DIR}/accuracy.cc
  ${CMAKE_CURRENT_LIST_DIR}/workload.cc
  ${CMAKE_CURRENT_LIST_DIR}/workload_tensors.cc)
target_link_libraries(fovea_workloads PUBLIC fovea_roofline fovea_reference)
