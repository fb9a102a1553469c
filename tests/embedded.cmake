# Tests of the header-only edition (fovea/embedded.h). Included by tests/CMakeLists.txt.
#
# The header is compiled for each instruction set in a unit of its own; everything around it runs on any CPU, which it asks before it calls the unit.
add_library(embedded_test OBJECT
  embedded/conformance_test.cc
  embedded/edges_test.cc
  embedded/errors_test.cc
  embedded/f16_test.cc
  embedded/fp_state_test.cc
  embedded/precision_test.cc
  embedded/rings_test.cc
  embedded/score_test.cc
  embedded/sizes_test.cc
  embedded/stack_test.cc
  embedded/support.cc
)
target_link_libraries(embedded_test PRIVATE fovea_test_support)

string(REGEX REPLACE "nm([^/]*)$" "size\\1" size_program "${CMAKE_NM}")  # of the same tool chain
foreach(isa IN LISTS FOVEA_EMBEDDED_ISAS)
  string(TOLOWER ${isa} suffix)
  foreach(instance UnderTest InDefaultState)
    set(target embedded_instance_${instance}_${suffix})
    add_library(${target} OBJECT embedded/instance.cc)
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(${target} PRIVATE fovea::embedded)
    target_compile_definitions(${target} PRIVATE FOVEA_EMBEDDED_INSTANCE=kEmbedded${instance}
      $<$<STREQUAL:${instance},InDefaultState>:FOVEA_EMBEDDED_DEFAULT_FP_STATE>)
    target_compile_options(${target} PRIVATE ${FOVEA_EMBEDDED_FLAGS_${isa}})
  endforeach()

  add_executable(embedded_test_${suffix} $<TARGET_OBJECTS:embedded_test>
    $<TARGET_OBJECTS:embedded_instance_UnderTest_${suffix}> $<TARGET_OBJECTS:embedded_instance_InDefaultState_${suffix}>)
  target_link_libraries(embedded_test_${suffix} PRIVATE fovea_test_support GTest::gtest_main)
  add_test(NAME embedded_test_${suffix} COMMAND embedded_test_${suffix} --gtest_brief=1)
  set_tests_properties(embedded_test_${suffix} PROPERTIES TIMEOUT 600 ENVIRONMENT "${environment}")

  # As for a bare target, at -Os: what the object needs from outside, and its size.
  if(NOT FOVEA_SANITIZE)
    add_library(embedded_bare_${suffix} OBJECT embedded/bare.cc)
    target_link_libraries(embedded_bare_${suffix} PRIVATE fovea::embedded)
    target_compile_options(embedded_bare_${suffix} PRIVATE ${FOVEA_EMBEDDED_FLAGS_${isa}}
      -Os -UNDEBUG -DNDEBUG -ffreestanding -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-asynchronous-unwind-tables -fno-unwind-tables)
    add_test(NAME embedded_bare_${suffix} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/embedded/bare.sh ${CMAKE_NM} ${size_program} 65536
      $<TARGET_OBJECTS:embedded_bare_${suffix}>)
  endif()

  # Right or refused under compilers' flags, and after other headers' macros. flags.sh tells how to run all of its sets.
  if(NOT FOVEA_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    string(JOIN " -isystem " xsimd_includes ${xsimd_INCLUDE_DIRS})
    string(JOIN " " flags ${FOVEA_EMBEDDED_FLAGS_${isa}})
    add_test(NAME embedded_flags_${suffix} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/embedded/flags.sh ${CMAKE_CXX_COMPILER}
      ${CMAKE_CURRENT_BINARY_DIR}/embedded_flags_${suffix} "-I${PROJECT_SOURCE_DIR}/include -isystem ${xsimd_includes}" "${flags}")
    set_tests_properties(embedded_flags_${suffix} PROPERTIES TIMEOUT 600 LABELS compilers)
  endif()
endforeach()
