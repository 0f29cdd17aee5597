# Compiler, linker and sanitizer settings. One interface target carries the warnings, not global flags.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# ccache with the checkout as base folder: a fresh clone elsewhere hits the same entries.
find_program(ATOLL_CCACHE ccache)
if(ATOLL_CCACHE)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${ATOLL_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
endif()

find_program(ATOLL_MOLD mold)
if(ATOLL_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(atoll_warnings INTERFACE)
target_compile_options(atoll_warnings INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(atoll_warnings INTERFACE -Wthread-safety)
endif()
if(ATOLL_WERROR)
  target_compile_options(atoll_warnings INTERFACE -Werror)
endif()

# Coverage for libFuzzer in every library; only the targets themselves link its main.
if(ATOLL_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(ATOLL_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=address,undefined)
elseif(ATOLL_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=thread)
elseif(NOT ATOLL_SANITIZER STREQUAL "")
  message(FATAL_ERROR "ATOLL_SANITIZER: expected empty, address or thread; found '${ATOLL_SANITIZER}'")
endif()
