# make          builds ./run                      make test    sets up .venv, builds everything, runs every test
# make demo     a story and its KV report         make asan    ./run-asan and the tests' C programs under ASan and UBSan
# make emulated checks the kernels for AMX and AVX-VNNI on any x86 processor
# make OMP=1    threads by OpenMP: ./run-omp      make model   remakes models/stories.bin (needs torch; under an hour)
# WERROR=1 makes warnings errors; CC=clang is fine.

CFLAGS := -O3 -std=c11 -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -Wall -Wextra \
    -Wno-unused-parameter -pthread
LDLIBS := -lm -pthread
BUILD := build
RUN := run

ifdef WERROR
CFLAGS += -Werror
endif
ifdef OMP
CFLAGS += -fopenmp
BUILD := build/omp
RUN := run-omp
endif
ifdef ASAN
CFLAGS += -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
BUILD := build/asan
RUN := run-asan
endif
ifdef EMULATED  # AMX and AVX-VNNI in plain C, for tests/c/test_kernels.c on processors that lack them
BUILD := build/emulated
endif
ifdef FUZZ  # with clang: build/fuzz/tests/c/fuzz_checkpoint is a libFuzzer target
CFLAGS += -O1 -g -DLIBFUZZER -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
BUILD := build/fuzz
endif

# Everything but the command line is the engine.
ENGINE := $(filter-out run.c,$(wildcard *.c)) $(wildcard text/*.c) kernels/kernels.c \
    kernels/scalar.c
MACHINE := $(shell $(CC) -dumpmachine)
ifneq (,$(findstring x86_64,$(MACHINE)))
X86 := avx2 avxvnni avx512 avx512bf16 amx
ENGINE += $(X86:%=kernels/%.c)
AVX2 := -mavx2 -mfma -mf16c
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
$(BUILD)/kernels/avx2.o: CFLAGS += $(AVX2)
$(BUILD)/kernels/avxvnni.o: CFLAGS += $(AVX2) -mavxvnni
$(BUILD)/kernels/avx512.o: CFLAGS += $(AVX512)
$(BUILD)/kernels/avx512bf16.o: CFLAGS += $(AVX512) -mavx512bf16
$(BUILD)/kernels/amx.o: CFLAGS += $(AVX512) -mamx-tile -mamx-bf16 -mamx-int8
endif
ifneq (,$(findstring aarch64,$(MACHINE))$(findstring arm64,$(MACHINE)))
ENGINE += kernels/neon.c
$(BUILD)/kernels/neon.o: CFLAGS += -march=armv8.2-a+dotprod
endif
ifdef FUZZ  # they take minutes to build with coverage; fuzz with HEADS_ISA=scalar
$(X86:%=$(BUILD)/kernels/%.o): CFLAGS += -fno-sanitize=all
endif
ifdef EMULATED
$(BUILD)/kernels/amx.o $(BUILD)/kernels/avxvnni.o: CFLAGS += -include tests/c/emulated_units.h
$(BUILD)/tests/c/test_kernels.o: CFLAGS += -DEMULATED
endif
ENGINE_OBJ := $(ENGINE:%.c=$(BUILD)/%.o)
RUN_OBJ := $(patsubst %.c,$(BUILD)/%.o,run.c $(wildcard cli/*.c))
TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/c/*.c))

$(RUN): $(RUN_OBJ) $(ENGINE_OBJ)
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/%.o: %.c $(BUILD)/command
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. -MMD -MP -c -o $@ $<

$(BUILD)/tests/c/%: $(BUILD)/tests/c/%.o $(ENGINE_OBJ)
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/c/test_json $(BUILD)/tests/c/fuzz_json $(BUILD)/tests/c/read_json: $(BUILD)/cli/json.o

# Objects are made again when the compiler or its flags change.
COMMAND := $(CC) $(CFLAGS)
$(BUILD)/command: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMAND)' | cmp -s - $@ || echo '$(COMMAND)' > $@

c-tests: $(TESTS)

emulated:
	$(MAKE) EMULATED=1 build/emulated/tests/c/test_kernels
	build/emulated/tests/c/test_kernels

asan:
	$(MAKE) ASAN=1 run-asan c-tests

demo: run
	./run models/stories.bin -n 200 -s 1
	@echo
	./run models/stories.bin --kv

# The tests' Python environment, made again only when a list of requirements changes.
.venv/ready: requirements.txt tests/requirements.txt
	@rm -f $@
	@python3 -m venv .venv || { echo 'make test: "python3 -m venv .venv" failed; install Python 3.9' \
	    'or later with its venv module (Debian, Ubuntu: apt-get install python3-venv)' >&2; exit 1; }
	@.venv/bin/python -m pip install -q -r requirements.txt -r tests/requirements.txt || \
	    { echo 'make test: pip could not install requirements.txt and tests/requirements.txt;' \
	    'its message is above' >&2; exit 1; }
	@touch $@

test: .venv/ready run c-tests
	@.venv/bin/python -m pytest -q tests

# Needs torch and transformers besides requirements.txt, in a virtual environment of its own.
model:
	python3 -m venv .venv-model
	.venv-model/bin/python -m pip install -q torch==2.13.0
	.venv-model/bin/python -m pip install -q -r requirements.txt transformers==5.23.0
	.venv-model/bin/python models/train.py
	.venv-model/bin/python export.py models/hf models/stories.bin

clean:
	rm -rf build run run-asan run-omp

-include $(shell find build -name '*.d' 2>/dev/null)

.PHONY: FORCE c-tests emulated asan demo test model clean
.DELETE_ON_ERROR:
.SECONDARY:
