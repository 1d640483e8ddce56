# Two commands do everything on a fresh Debian machine: `make run` and `make test`.
# The work is done by CMake presets and by scripts/; this file only names it.

BUILD := build/release
JOBS  ?= $(shell nproc)

.PHONY: help run test bench format tidy asan fuzz cuda install build clean

help:
	@echo "make run     install, build, and read a long document with dense and with sparse attention"
	@echo "make test    install, build, and run every test that this machine can run"
	@echo "make bench   attention and selection kernels against this machine's own GEMM and copy rates"
	@echo "make asan    the tests again under AddressSanitizer and UBSan"
	@echo "make fuzz    every fuzz target for FUZZ_SECONDS (60)"
	@echo "make cuda    build fovea with the Hopper kernels, and their tests (needs the CUDA 13 toolkit, no GPU)"
	@echo "make format  clang-format everything; make tidy  clang-tidy everything"

run: build
	scripts/demo.sh

test: build
	ctest --test-dir $(BUILD) --output-on-failure

bench: build
	$(BUILD)/apps/cli/fovea kernels

build: install
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS)

install:
	scripts/install.sh build

asan:
	scripts/install.sh build
	cmake --preset asan
	cmake --build build/asan -j $(JOBS)
	ASAN_OPTIONS=allocator_may_return_null=1 ctest --test-dir build/asan --output-on-failure

fuzz:
	scripts/install.sh build lint
	cmake --preset fuzz
	cmake --build build/fuzz -j $(JOBS) --target fuzzers
	scripts/run_fuzz.sh build/fuzz $${FUZZ_SECONDS:-60}

cuda:
	scripts/install.sh build
	cmake --preset cuda
	cmake --build build/cuda -j $(JOBS) --target fovea fovea_cuda_capi tensor_test \
	  attention_cuda_test selector_cuda_test ops_cuda_test engine_gpu_test
	ctest --test-dir build/cuda --output-on-failure -R '[Cc]uda|[Pp]tx|[Ss]wizzle|Gpu' -E _NOT_BUILT

format:
	scripts/install.sh build lint
	git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format-14 -i

tidy:
	scripts/install.sh build lint
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS)
	scripts/run_tidy.sh $(BUILD)

clean:
	rm -rf build
