# fovea_library(NAME SOURCES a.cc ... DEPS fovea_base ...): one library for one folder of src/fovea.
# DEPS are the only folders whose headers the target may include; scripts/check_layers.py checks the same.
function(fovea_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE fovea_warnings ${ARG_PRIVATE_DEPS})
endfunction()

# fovea_test(NAME SOURCES a_test.cc ... DEPS fovea_x ...): a GoogleTest binary, each case one ctest entry.
# Tests run from the root of the tree, so that they find models/ and tests/golden/.
include(GoogleTest)
function(fovea_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} fovea_warnings GTest::gtest GTest::gmock
                                        GTest::gtest_main)
  # NO_PRETTY_VALUES: cases are known by their own names, not by their parameters' bytes as well.
  gtest_discover_tests(${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} DISCOVERY_TIMEOUT 60
                       NO_PRETTY_VALUES PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
