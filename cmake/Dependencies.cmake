# Where the libraries come from that Fovea is built with. Its public headers and its installed library need none of them.
#
# Each is taken from the first of: a source folder given as FETCHCONTENT_SOURCE_DIR_<NAME> (./dev gives one for Highway, and for GoogleTest
# when cross-compiling), an installed package (find_package), the pinned release below. The commits are those of the release tags.
include(FetchContent)

# The pinned releases are for systems without these packages. The function is kept simple because the machines that test it have them.
function(fovea_fetch name repository commit)
  # SOURCE_SUBDIR names a folder without a CMakeLists.txt: get the source, and leave adding it to the caller.
  FetchContent_Declare(${name} GIT_REPOSITORY ${repository} GIT_TAG ${commit} SOURCE_SUBDIR no-such-folder)
  FetchContent_MakeAvailable(${name})
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5)  # GoogleTest 1.12 asks for 2.8, which CMake 4 refuses
  string(TOLOWER ${name} folder)
  add_subdirectory(${${folder}_SOURCE_DIR} ${PROJECT_BINARY_DIR}/_deps/${folder}-build EXCLUDE_FROM_ALL)
endfunction()

# Highway, static and private. Built from source, it lives in a namespace of its own (fovea_hwy), so that a process may use another Highway
# of any version: neither its functions nor the inline ones in its headers can meet ours at link time.
#
# HWY_BROKEN_EMU128=0: with GCC before 14, Highway 1.2 replaces the portable target by one without all operations, because of GCC's bug 106322
# and Highway's issue 1683. Both concern vectorised integer code on other machines than 64-bit x86 and Arm. To be deleted with GCC 12 and 13.
#
# HWY_SSE2_HAVE_SCALAR_BF16_TYPE=0: with Clang, the compiler's type of a bf16 number needs __truncsfbf2 of GCC 13's libgcc in builds without optimisation.
set(highway_definitions HWY_BROKEN_EMU128=0 $<$<CXX_COMPILER_ID:Clang,AppleClang>:HWY_SSE2_HAVE_SCALAR_BF16_TYPE=0>)
if(NOT FETCHCONTENT_SOURCE_DIR_HIGHWAY)
  find_package(hwy 1.2 CONFIG QUIET)
endif()
if(NOT hwy_FOUND)
  foreach(part CONTRIB EXAMPLES INSTALL TESTS)
    set(HWY_ENABLE_${part} OFF CACHE BOOL "" FORCE)
  endforeach()
  set(HWY_FORCE_STATIC_LIBS ON CACHE BOOL "" FORCE)
  fovea_fetch(highway https://github.com/google/highway.git 457c891775a7397bdb0376bb1031e6e027af1c48)  # 1.2.0
  add_library(hwy::hwy ALIAS hwy)
  target_compile_definitions(hwy PUBLIC hwy=fovea_hwy ${highway_definitions})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^riscv")
    # Its own functions too: a compiler may lack the vectors' header. None of Fovea's kernels is for that target.
    target_compile_definitions(hwy PRIVATE HWY_DISABLED_TARGETS=HWY_RVV)
  endif()
  get_target_property(highway_include hwy INTERFACE_INCLUDE_DIRECTORIES)
  set_target_properties(hwy PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${highway_include}")
  set(FOVEA_HIGHWAY_FROM_SOURCE ON)
else()
  target_compile_definitions(hwy::hwy INTERFACE ${highway_definitions})
endif()

if(FOVEA_TBB)
  find_package(TBB 2021.8 CONFIG QUIET)
  if(NOT TBB_FOUND)
    set(TBB_TEST OFF CACHE BOOL "" FORCE)
    set(TBB_STRICT OFF CACHE BOOL "" FORCE)
    set(BUILD_SHARED_LIBS ON)  # a process must have one oneTBB
    set(CMAKE_CXX_VISIBILITY_PRESET default)  # what it exports is in its linker script
    fovea_fetch(tbb https://github.com/uxlfoundation/oneTBB.git 0c0ff192a2304e114bc9e6557582dfba101360ff)  # 2022.0.0
    set(CMAKE_CXX_VISIBILITY_PRESET hidden)
    unset(BUILD_SHARED_LIBS)  # back to the option
  endif()
endif()

# xsimd is headers alone: its folder is all that is needed, whether a package names it or the source holds it.
if(FOVEA_EMBEDDED)
  if(NOT FETCHCONTENT_SOURCE_DIR_XSIMD)
    find_package(xsimd 13 CONFIG QUIET)
  endif()
  if(NOT xsimd_FOUND)
    FetchContent_Declare(xsimd GIT_REPOSITORY https://github.com/xtensor-stack/xsimd.git
      GIT_TAG 1f8dd9c8e162968d9b4ff0251c56d431b8777f36 SOURCE_SUBDIR no-such-folder)  # 13.2.0
    FetchContent_MakeAvailable(xsimd)
    set(xsimd_INCLUDE_DIRS ${xsimd_SOURCE_DIR}/include)
  endif()
endif()

if(FOVEA_CLI OR FOVEA_TESTS)
  if(NOT FETCHCONTENT_SOURCE_DIR_JSON)
    find_package(nlohmann_json 3.11 CONFIG QUIET)
  endif()
  if(NOT nlohmann_json_FOUND)
    fovea_fetch(json https://github.com/nlohmann/json.git 9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03)  # 3.11.3
  endif()
endif()

if(FOVEA_TESTS)
  if(NOT FETCHCONTENT_SOURCE_DIR_GOOGLETEST)
    find_package(GTest 1.12 CONFIG QUIET)
  endif()
  if(NOT GTest_FOUND)
    set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
    fovea_fetch(googletest https://github.com/google/googletest.git b514bdc898e2951020cbdca1304b75f5950d1f59)  # 1.15.2
    foreach(library gtest gtest_main gmock gmock_main)
      if(NOT TARGET GTest::${library})
        add_library(GTest::${library} ALIAS ${library})
      endif()
    endforeach()
  endif()
endif()

if(FOVEA_BENCHMARKS)
  find_package(benchmark 1.7 CONFIG QUIET)
  if(NOT benchmark_FOUND)
    set(BENCHMARK_ENABLE_TESTING OFF CACHE BOOL "" FORCE)
    set(BENCHMARK_ENABLE_INSTALL OFF CACHE BOOL "" FORCE)
    fovea_fetch(benchmark https://github.com/google/benchmark.git c58e6d0710581e3a08d65c349664128a8d9a2461)  # 1.9.1
  endif()
endif()
