# Every dependency as one target `deps::name`. What they are and why: docs/architecture.md; versions: deploy/dependencies.txt.

execute_process(
  COMMAND ${CMAKE_SOURCE_DIR}/deploy/setup.sh --prefix
  OUTPUT_VARIABLE ATOLL_PREFIX OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS ${ATOLL_PREFIX}/complete)
  message(FATAL_ERROR "The environment ${ATOLL_PREFIX} is missing; run deploy/setup.sh first")
endif()

find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(absl REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CURL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(LibArchive REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(UCX REQUIRED IMPORTED_TARGET ucx)
pkg_check_modules(TURBOJPEG REQUIRED IMPORTED_TARGET libturbojpeg)
pkg_check_modules(WEBP REQUIRED IMPORTED_TARGET libwebp)
pkg_check_modules(PQ REQUIRED IMPORTED_TARGET libpq)

function(atoll_dependency name)
  add_library(deps_${name} INTERFACE)
  target_link_libraries(deps_${name} INTERFACE ${ARGN})
  add_library(deps::${name} ALIAS deps_${name})
endfunction()

atoll_dependency(threads Threads::Threads)
atoll_dependency(absl absl::status absl::statusor absl::strings absl::str_format absl::time absl::synchronization
  absl::flat_hash_map absl::flat_hash_set absl::btree absl::span absl::cleanup absl::random_random)
atoll_dependency(protobuf protobuf::libprotobuf)
atoll_dependency(grpc gRPC::grpc++ gRPC::grpc++_reflection)
atoll_dependency(sqlite SQLite::SQLite3)
atoll_dependency(openssl OpenSSL::Crypto)
atoll_dependency(tls OpenSSL::SSL OpenSSL::Crypto)
atoll_dependency(curl CURL::libcurl)
atoll_dependency(postgres PkgConfig::PQ)
atoll_dependency(zlib ZLIB::ZLIB)
atoll_dependency(png PNG::PNG)
atoll_dependency(jpeg PkgConfig::TURBOJPEG)
atoll_dependency(webp PkgConfig::WEBP)
atoll_dependency(archive LibArchive::LibArchive)
atoll_dependency(prometheus prometheus-cpp::core)
atoll_dependency(fmt fmt::fmt)
atoll_dependency(spdlog spdlog::spdlog fmt::fmt)
atoll_dependency(yaml yaml-cpp)
atoll_dependency(json nlohmann_json::nlohmann_json)
# Headers only.
atoll_dependency(asio Boost::headers OpenSSL::SSL OpenSSL::Crypto Threads::Threads)
atoll_dependency(cli11 CLI11::CLI11)
atoll_dependency(ucx PkgConfig::UCX)

# Arrow and Parquet from the pyarrow wheel. libparquet.so exports the OpenSSL that it contains. The system's OpenSSL is
# linked before it, or libssl (below gRPC's TLS and curl) would call a mixture of both and crash.
add_library(deps_arrow INTERFACE)
target_include_directories(deps_arrow SYSTEM INTERFACE ${ATOLL_PREFIX}/arrow/include)
target_link_libraries(deps_arrow INTERFACE -Wl,--no-as-needed ${OPENSSL_CRYPTO_LIBRARY} -Wl,--as-needed
  ${ATOLL_PREFIX}/arrow/libarrow.so ${ATOLL_PREFIX}/arrow/libparquet.so)
target_link_options(deps_arrow INTERFACE -Wl,-rpath,${ATOLL_PREFIX}/arrow -Wl,--allow-shlib-undefined)
add_library(deps::arrow ALIAS deps_arrow)

# LibTorch from the torch wheel. Its include folder has old protobuf and fmt headers, so it comes after the system's
# (-idirafter). libtorch_cuda.so needs every CUDA library, and most of them are not installed on machines without a GPU.
# Therefore no target links it; a CUDA build loads it when a device is requested (common/model/device.h).
add_library(deps_torch INTERFACE)
target_compile_options(deps_torch INTERFACE
  "SHELL:-idirafter ${ATOLL_PREFIX}/torch/include/torch/csrc/api/include" "SHELL:-idirafter ${ATOLL_PREFIX}/torch/include")
target_link_libraries(deps_torch INTERFACE
  -Wl,--no-as-needed ${ATOLL_PREFIX}/torch/lib/libtorch_cpu.so ${ATOLL_PREFIX}/torch/lib/libc10.so -Wl,--as-needed)
target_link_options(deps_torch INTERFACE
  -Wl,-rpath,${ATOLL_PREFIX}/torch/lib -Wl,-rpath,${ATOLL_PREFIX}/nvidia/cu13/lib -Wl,--allow-shlib-undefined)
add_library(deps::torch ALIAS deps_torch)

if(ATOLL_CUDA)
  add_library(deps_nccl INTERFACE)
  target_include_directories(deps_nccl SYSTEM INTERFACE ${ATOLL_PREFIX}/nvidia/nccl/include ${ATOLL_PREFIX}/nvidia/cu13/include
    ${ATOLL_PREFIX}/nvidia/cu13/include/cccl)
  target_compile_definitions(deps_nccl INTERFACE ATOLL_CUDA=1)
  target_link_libraries(deps_nccl INTERFACE
    ${ATOLL_PREFIX}/nvidia/nccl/lib/libnccl.so.2 ${ATOLL_PREFIX}/nvidia/cu13/lib/libcudart.so.13)
  target_link_options(deps_nccl INTERFACE
    -Wl,-rpath,${ATOLL_PREFIX}/nvidia/nccl/lib -Wl,-rpath,${ATOLL_PREFIX}/nvidia/cu13/lib -Wl,--allow-shlib-undefined)
  add_library(deps::nccl ALIAS deps_nccl)
  target_link_libraries(deps_torch INTERFACE
    -Wl,--no-as-needed ${ATOLL_PREFIX}/torch/lib/libc10_cuda.so ${ATOLL_PREFIX}/nvidia/cu13/lib/libcudart.so.13
    -Wl,--as-needed)
endif()

if(ATOLL_TESTS)
  find_package(GTest CONFIG REQUIRED)
  atoll_dependency(gtest GTest::gtest GTest::gmock)
endif()
if(ATOLL_BENCHMARKS)
  find_package(benchmark CONFIG REQUIRED)
  atoll_dependency(benchmark benchmark::benchmark)
endif()
