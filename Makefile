# tracejit: one makefile, no recursion. `make` builds the libraries; the other targets are
#
#   check-compile   compile every source file there is, link nothing
#   lib             libtracejit.so, libtracejit.a and the compiler module libtracejit-llvm.so
#   test            install what is missing (deps), build and run all tests; T="expr pool" picks test binaries
#   test-ops        every golden value of every op in every tier, every kernel at every feature level (make test: a sample)
#   test-asan test-ubsan test-tsan   the same under a sanitizer
#   tests           build the tests only
#   bench           build the benchmarks into build/bench (benches) and run soak, shapes, limits, scale and bench
#   examples        docs/examples/*.c and *.cpp, into build/<variant>/examples
#   demo            deps, build, and run the digits example
#   install         PREFIX=/usr/local DESTDIR=
#   test-torch      exchange tensors with PyTorch in one process, where PYTHON=python3 has it
#   test-install    install into a scratch directory, compile and run programs against it
#   deps            install missing Debian packages; quick when there are none
#   format format-check tidy header-check abi-check abi-update clean
#
# Options: CC=clang; LLVM=no (no compiler module, no LLVM needed); LLVM_CONFIG=llvm-config-19;
# LLVM_LINK=shared (the distribution's shared LLVM); O=-O0; V=1 prints commands.
#
# Sources are found by wildcard. Names decide where a file goes:
#   lib/*.c trace/*.c jit/*.c kernels/*.c     libtracejit
#   jit/*_llvm.c kernels/*_llvm.c             the compiler module: they call the LLVM C API
#   jit/backend_none.c                        with LLVM=no, instead of jit/backend_cpu.c
#   tests/test_*.c                            one libcheck program each, linked with all internals (tj_*)
#   tests/*.c, the others                     helpers, linked into each test program
#   tests/embed/*.c *.cpp, docs/examples/*.c *.cpp   programs linked with the public shared library; those in
#                                             tests/embed, and docs/examples/hello*, are run as tests: exit status 0 passes
#   bench/*.c                                 one program each, linked with the public shared library
# Objects go to build/<variant>/, the variant being release, asan, ubsan or tsan plus -clang, -nollvm, -llvm19.

VERSION  := 0.1.0
SOMAJOR  := 0
comma    := ,
PREFIX   ?= /usr/local
libdir   ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
O        ?= -O2
LLVM     ?= yes
LLVM_LINK ?= static
INSTALL  ?= install
DEMO_ARGS ?= digits.safetensors
STRIP    ?= strip
CLANG_FORMAT ?= $(firstword $(shell command -v clang-format-14 clang-format))
CLANG_TIDY ?= $(firstword $(shell command -v clang-tidy-14 clang-tidy))
# The library and the package files name these places: they have to be absolute.
absolute = $(if $(filter /%,$($(1))),$($(1)),$(abspath $($(1))))
override PREFIX := $(call absolute,PREFIX)
override libdir := $(call absolute,libdir)
override includedir := $(call absolute,includedir)
Q        := $(if $(V),,@)
say       = $(if $(V),,@printf '  %-6s %s\n' '$(1)' '$(2)')

.DEFAULT_GOAL := lib
.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

# ---- compilers ---------------------------------------------------------------------------------

ifeq ($(origin CC),default)
CC := gcc
endif
CC_IS_CLANG := $(findstring clang,$(shell $(CC) --version 2>/dev/null | head -n 1))
ifeq ($(origin CXX),default)
CXX := $(if $(CC_IS_CLANG),$(patsubst %clang,%clang++,$(subst clang-,clang++-,$(CC))),g++)
endif

# Targets that need packages fetch them before make reads anything else: a rule that makes an included file starts
# make over once it has run.
ifneq (,$(filter deps demo test test-% bench tests,$(MAKECMDGOALS)))
ifneq ($(wildcard .ci/deps),)
-include build/deps.mk
build/deps.mk: .ci/deps
	@mkdir -p build
	@bash .ci/deps $(if $(filter no,$(LLVM)),--no-llvm) && echo '# packages are there' >$@
endif
endif

# ---- LLVM --------------------------------------------------------------------------------------

ifneq ($(LLVM),no)
LLVM_CONFIG ?= $(firstword $(foreach v,22 21 20 19,$(shell command -v llvm-config-$(v) || ls /usr/lib/llvm-$(v)/bin/llvm-config 2>/dev/null)))
ifneq ($(LLVM_CONFIG),)
LLVM_VERSION := $(shell $(LLVM_CONFIG) --version)
LLVM_MAJOR := $(firstword $(subst ., ,$(LLVM_VERSION)))
LLVM_INCLUDE := $(shell $(LLVM_CONFIG) --includedir)
LLVM_TARGET := $(if $(findstring aarch64,$(shell $(LLVM_CONFIG) --host-target)),aarch64,x86)
endif
ifeq ($(LLVM_LINK),shared)
LLVM_LIBS = $(shell $(LLVM_CONFIG) --ldflags --link-shared --libs)
else
LLVM_COMPONENTS := core target codegen analysis $(addprefix $(LLVM_TARGET),codegen asmparser desc info)
# LLVM's own needs (zlib and zstd, of which sections may be compressed): static where there is an archive.
find_lib = $(firstword $(filter /%,$(foreach f,lib$(1).a lib$(1).so lib$(1).so.1,$(shell $(CXX) -print-file-name=$(f)))))
LLVM_SYSTEM_LIBS = $(foreach l,$(filter-out rt dl m pthread,$(patsubst -l%,%,$(filter -l%,$(shell $(LLVM_CONFIG) --link-static --system-libs \
  $(LLVM_COMPONENTS))))),$(call find_lib,$(l)))
LLVM_LIBS = $(shell $(LLVM_CONFIG) --ldflags) -Wl,--start-group $(shell $(LLVM_CONFIG) --link-static --libs $(LLVM_COMPONENTS)) \
  -Wl,--end-group -Wl,--as-needed $(LLVM_SYSTEM_LIBS) -static-libstdc++ -static-libgcc -Wl,--gc-sections -Wl,--exclude-libs,ALL
endif
endif

# Library files the module needs a copy of its own of (it calls the library itself only through its table).
LLVM_MODULE_EXTRA ?= lib/base.c lib/arena.c lib/strbuf.c lib/hash.c

# ---- flags -------------------------------------------------------------------------------------

WARN   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
# fma only where it is written: no contraction by the compiler, in any file.
# Small structs are cleared by stores: gcc's choice, rep stos, takes as long as recording an op.
CFLAGS_TUNE := $(if $(CC_IS_CLANG),,$(if $(findstring x86_64,$(shell uname -m)),-mmemset-strategy=unrolled_loop:512:noalign$(comma)libcall:-1:noalign))
CFLAGS_ALL := -std=c11 -D_GNU_SOURCE $(O) -g -fPIC -fvisibility=hidden -ffp-contract=off -pthread $(CFLAGS_TUNE) $(WARN) $(CFLAGS)
CXXFLAGS_ALL := -std=c++17 $(O) -g -Wall -Wextra -Werror -pthread $(CXXFLAGS)
LIBS   := -lm -ldl -lpthread
SOFLAGS := -shared -Wl,-z,relro -Wl,-z,now -Wl,-Bsymbolic

TAG := $(if $(CC_IS_CLANG),-clang)$(if $(filter no,$(LLVM)),-nollvm)$(if $(LLVM_MAJOR),$(if $(filter 22,$(LLVM_MAJOR)),,-llvm$(LLVM_MAJOR)))$(if $(filter shared,$(LLVM_LINK)),-shared)
VARIANTS := release asan ubsan tsan
# Sanitizers make gcc's flow warnings guess; the release build has them all.
SAN_WARN := $(if $(CC_IS_CLANG),,-Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds)
SAN_release :=
SAN_asan  := -fsanitize=address -fno-omit-frame-pointer $(SAN_WARN)
SAN_ubsan := -fsanitize=undefined -fno-sanitize-recover=all $(SAN_WARN)
SAN_tsan  := -fsanitize=thread $(SAN_WARN)
# clang links a sanitizer's runtime into programs only, so its shared objects have undefined symbols.
DEFS_release := -Wl,-z,defs
DEFS_asan := $(if $(CC_IS_CLANG),,-Wl,-z,defs)
DEFS_ubsan := $(DEFS_asan)
DEFS_tsan := $(DEFS_asan)

# ---- sources -----------------------------------------------------------------------------------

SRC_ALL  := $(wildcard lib/*.c trace/*.c jit/*.c kernels/*.c)
SRC_LLVM := $(filter %_llvm.c,$(SRC_ALL))
# One of the two files defines the CPU backend: the compiler's, or the one that says there is none.
SRC_LIB  := $(filter-out %_llvm.c $(if $(filter no,$(LLVM)),jit/backend_cpu.c,jit/backend_none.c),$(SRC_ALL))
TEST_SRC := $(wildcard tests/test_*.c)
TEST_AUX := $(filter-out $(TEST_SRC),$(wildcard tests/*.c))
TEST_NAMES := $(patsubst tests/%.c,%,$(TEST_SRC))
# x.c makes program x, x.cpp makes x_cpp.
EMBED    := $(patsubst %.cpp,%_cpp,$(patsubst %.c,%,$(wildcard tests/embed/*.c tests/embed/*.cpp)))
EXAMPLES := $(patsubst %.cpp,%_cpp,$(patsubst %.c,%,$(notdir $(wildcard docs/examples/*.c docs/examples/*.cpp))))
# The programs that docs/*.md quote.
DOCS     := $(patsubst %.c,%,$(wildcard tests/docs/*.c))
BENCHES  := $(wildcard bench/*.c)
PUBLIC   := $(wildcard include/*.h include/*.hpp)
FORMAT_SRC := $(wildcard $(foreach d,include lib trace jit kernels tests tests/embed tests/docs bench docs/examples,$(foreach e,c h hpp cpp,$(d)/*.$(e))))
HAS_MODULE := $(if $(filter no,$(LLVM)),,$(if $(SRC_LLVM),yes))
CHECK_LIBS = $(shell pkg-config --libs check 2>/dev/null || echo -lcheck -lsubunit -lrt -lm -lpthread)

stamp = @mkdir -p $(@D); printf '%s\n' '$(1)' >$@.new; cmp -s $@.new $@ && rm -f $@.new || mv $@.new $@

# ---- rules of a variant ------------------------------------------------------------------------

# $(1) variant. D_<variant> is its directory.
define VARIANT
D_$(1) := build/$(1)$(TAG)
OBJ_$(1) := $(SRC_LIB:%.c=build/$(1)$(TAG)/%.o)
OBJ_LLVM_$(1) := $(SRC_LLVM:%.c=build/$(1)$(TAG)/%.o)
LIB_$(1) := $$(D_$(1))/libtracejit.so $$(D_$(1))/libtracejit.a $(if $(HAS_MODULE),build/$(1)$(TAG)/libtracejit-llvm.so)
TESTS_$(1) := $(TEST_NAMES:%=build/$(1)$(TAG)/%)
EMBED_$(1) := $(EMBED:%=build/$(1)$(TAG)/%)
DOCS_$(1) := $(DOCS:%=build/$(1)$(TAG)/%)
EXAMPLES_$(1) := $(EXAMPLES:%=build/$(1)$(TAG)/examples/%)

# A change of flags rebuilds; a change of this file alone doesn't. The one file that knows the place of installation has
# a flag and a stamp of its own, so that installing elsewhere rebuilds nothing else.
$$(D_$(1))/flags: FORCE
	$$(call stamp,$(subst ','\'',$(CC) $(CFLAGS_ALL) $(SAN_$(1))))
$$(D_$(1))/libdir: FORCE
	$$(call stamp,$(libdir))
$$(D_$(1))/jit/backend_cpu.o: $$(D_$(1))/libdir
$$(D_$(1))/jit/backend_cpu.o: DIR_FLAG := -DTJ_LLVM_DEFAULT_DIR='"$(libdir)"'

# lib/module.map decides what the module exports; its one symbol needn't be marked.
$$(D_$(1))/%_llvm.o: %_llvm.c $$(D_$(1))/flags
	$$(if $$(LLVM_CONFIG),,$$(error no llvm-config of version 19 or newer: run "make deps", or build with LLVM=no))
	$$(call say,CC,$$<)
	@mkdir -p $$(@D)
	$$(Q)$(CC) $(CFLAGS_ALL) $(SAN_$(1)) -fvisibility=default -isystem $(LLVM_INCLUDE) -MMD -MP -c $$< -o $$@

$$(D_$(1))/%.o: %.c $$(D_$(1))/flags
	$$(call say,CC,$$<)
	@mkdir -p $$(@D)
	$$(Q)$(CC) $(CFLAGS_ALL) $(SAN_$(1)) $$(DIR_FLAG) -MMD -MP -c $$< -o $$@

# The library's objects with every symbol visible: tests link these.
$$(D_$(1))/libtj.a: $$(OBJ_$(1))
	$$(call say,AR,$$@)
	@rm -f $$@
	$$(Q)ar rcs $$@ $$^

$$(D_$(1))/libtracejit.so.$(VERSION): $$(OBJ_$(1)) lib/tracejit.map
	$$(call say,LD,$$@)
	$$(Q)$(CC) $(SAN_$(1)) $(SOFLAGS) $(DEFS_$(1)) -Wl,-soname,libtracejit.so.$(SOMAJOR) \
	  -Wl,--version-script=lib/tracejit.map -o $$@ $$(OBJ_$(1)) $(LIBS)

$$(D_$(1))/libtracejit.so.$(SOMAJOR): $$(D_$(1))/libtracejit.so.$(VERSION)
	$$(Q)ln -sf libtracejit.so.$(VERSION) $$@
$$(D_$(1))/libtracejit.so: $$(D_$(1))/libtracejit.so.$(SOMAJOR)
	$$(Q)ln -sf libtracejit.so.$(SOMAJOR) $$@

# One object whose internal symbols are local, so that a program's own names can't meet the library's.
$$(D_$(1))/libtracejit.a: $$(OBJ_$(1))
	$$(call say,AR,$$@)
	@rm -f $$@
	$$(Q)ld -r -o $$(D_$(1))/tracejit-all.o $$^
	$$(Q)objcopy --wildcard --keep-global-symbol='trace_*' $$(D_$(1))/tracejit-all.o $$(D_$(1))/tracejit.o
	$$(Q)ar rcs $$@ $$(D_$(1))/tracejit.o

$$(D_$(1))/libtracejit-llvm.so: $$(OBJ_LLVM_$(1)) $$(LLVM_MODULE_EXTRA:%.c=$$(D_$(1))/%.o) lib/module.map
	$$(call say,LD,$$@)
	$$(Q)$(CXX) $(SAN_$(1)) $(SOFLAGS) $(DEFS_$(1)) -Wl,--version-script=lib/module.map -o $$@ \
	  $$(filter %.o,$$^) $$(LLVM_LIBS) $(LIBS)

# Helpers are an archive too: a test links those it calls.
$$(D_$(1))/tests/libaux.a: $$(TEST_AUX:%.c=$$(D_$(1))/%.o)
	@mkdir -p $$(@D); rm -f $$@
	$$(Q)ar rcs $$@ $$^

$$(TESTS_$(1)): $$(D_$(1))/%: $$(D_$(1))/tests/%.o $$(D_$(1))/tests/libaux.a $$(D_$(1))/libtj.a
	$$(call say,LD,$$@)
	$$(Q)$(CC) $(SAN_$(1)) -o $$@ $$^ $$(CHECK_LIBS) $(LIBS)

$$(D_$(1))/tests/embed/%: tests/embed/%.c $$(D_$(1))/libtracejit.so $(PUBLIC)
	$$(call say,CCLD,$$@)
	@mkdir -p $$(@D)
	$$(Q)$(CC) -std=c11 -D_GNU_SOURCE $(O) -g -Wall -Wextra -Werror -pthread $(SAN_$(1)) -Iinclude -o $$@ $$< \
	  -L$$(D_$(1)) -ltracejit '-Wl,-rpath,$$$$ORIGIN/../..' $(LIBS)
$$(D_$(1))/tests/embed/%_cpp: tests/embed/%.cpp $$(D_$(1))/libtracejit.so $(PUBLIC)
	$$(call say,CXXLD,$$@)
	@mkdir -p $$(@D)
	$$(Q)$(CXX) $(CXXFLAGS_ALL) $(SAN_$(1)) -Iinclude -o $$@ $$< -L$$(D_$(1)) -ltracejit '-Wl,-rpath,$$$$ORIGIN/../..' $(LIBS)

$$(D_$(1))/tests/docs/%: tests/docs/%.c tests/docs/pitfall.h $$(D_$(1))/libtracejit.so $(PUBLIC)
	$$(call say,CCLD,$$@)
	@mkdir -p $$(@D)
	$$(Q)$(CC) -std=c11 $(O) -g -Wall -Wextra -Werror -pthread $(SAN_$(1)) -Iinclude -o $$@ $$< \
	  -L$$(D_$(1)) -ltracejit '-Wl,-rpath,$$$$ORIGIN/../..' $(LIBS)

$$(D_$(1))/examples/%: docs/examples/%.c $$(D_$(1))/libtracejit.so $(PUBLIC)
	$$(call say,CCLD,$$@)
	@mkdir -p $$(@D)
	$$(Q)$(CC) -std=c11 $(O) -g -Wall -Wextra -Werror -pthread $(SAN_$(1)) -Iinclude -o $$@ $$< \
	  -L$$(D_$(1)) -ltracejit '-Wl,-rpath,$$$$ORIGIN/..' $(LIBS)
$$(D_$(1))/examples/%_cpp: docs/examples/%.cpp $$(D_$(1))/libtracejit.so $(PUBLIC)
	$$(call say,CXXLD,$$@)
	@mkdir -p $$(@D)
	$$(Q)$(CXX) $(CXXFLAGS_ALL) $(SAN_$(1)) -Iinclude -o $$@ $$< -L$$(D_$(1)) -ltracejit '-Wl,-rpath,$$$$ORIGIN/..' $(LIBS)

-include $$(OBJ_$(1):.o=.d) $$(OBJ_LLVM_$(1):.o=.d) $(patsubst %.c,build/$(1)$(TAG)/%.d,$(TEST_SRC) $(TEST_AUX))
endef
$(foreach v,$(VARIANTS),$(eval $(call VARIANT,$(v))))

# ---- targets -----------------------------------------------------------------------------------

.PHONY: FORCE all lib check-compile tests examples bench benches deps demo explain-demo test-html install clean test test-asan test-ubsan test-tsan \
  test-docs docs-update test-ops test-install test-torch format format-check tidy header-check abi-check abi-update
FORCE:

all: lib tests examples bench
lib: $(LIB_release)
check-compile: $(OBJ_release) $(if $(filter no,$(LLVM)),,$(OBJ_LLVM_release))
tests: $(TESTS_release) $(EMBED_release) $(DOCS_release)
examples: $(EXAMPLES_release)
deps:
	@bash .ci/deps $(if $(filter no,$(LLVM)),--no-llvm)


# ---- tests: $(1) target, $(2) variant, $(3) environment
# libcheck runs each test in a child process; a sanitizer that doesn't follow forks gets them in one process.
TEST_ENV_release :=
TEST_ENV_asan  := ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=1:allocator_may_return_null=1
TEST_ENV_ubsan := UBSAN_OPTIONS=print_stacktrace=1
TEST_ENV_tsan  := TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:die_after_fork=0:allocator_may_return_null=1 CK_FORK=no RUN_PREFIX='setarch -R'
# Binaries to run; T="lib pool" picks by name.
picked = $(if $(T),$(foreach n,$(T),$(filter %/test_$(n) %/$(n),$(1))),$(1))

define TEST
.PHONY: $(1)
$(1): $(LIB_$(2)) $(TESTS_$(2)) $(EMBED_$(2)) $(DOCS_$(2)) $(filter %/hello %/hello_cpp,$(EXAMPLES_$(2)))
	@env $(TEST_ENV_$(2)) $(call docs_env,$(2)) TRACEJIT_LLVM=$(if $(HAS_MODULE),$(CURDIR)/$(D_$(2))/libtracejit-llvm.so) \
	  bash tests/run.sh $(D_$(2))/tests.log $$(call picked,$(TESTS_$(2)) $(EMBED_$(2)) $(filter %/hello %/hello_cpp,$(EXAMPLES_$(2))) \
	  $(if $(filter release,$(2)),tests/docs/docs))
endef
$(eval $(call TEST,test,release))
$(foreach v,asan ubsan tsan,$(eval $(call TEST,test-$(v),$(v))))

test-ops: $(LIB_release) $(D_release)/test_ops $(D_release)/test_emit
	@env TJ_ALL=1 TRACEJIT_LLVM=$(if $(HAS_MODULE),$(CURDIR)/$(D_release)/libtracejit-llvm.so) \
	  bash tests/run.sh $(D_release)/tests-ops.log $(D_release)/test_ops $(D_release)/test_emit

# What docs/breaks.md and docs/shapes.md quote is what their programs are and print; T=docs picks it in `make test`.
docs_env = TJ_DOCS=$(CURDIR)/$(D_$(1))/tests/docs TJ_DOCS_COMPARE=$(if $(HAS_MODULE),yes,no)
test-docs docs-update: $(LIB_release) $(DOCS_release)
	@env $(call docs_env,release) TRACEJIT_LLVM=$(if $(HAS_MODULE),$(CURDIR)/$(D_release)/libtracejit-llvm.so) \
	  tests/docs/docs $(if $(filter docs-update,$@),--update)

# ---- benchmarks, demo

build/bench/%: bench/%.c $(LIB_release) $(PUBLIC) $(wildcard bench/*.h)
	$(call say,CCLD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE $(O) -g -Wall -Wextra -Werror -pthread -Iinclude -o $@ $< -L$(D_release) -ltracejit \
	  '-Wl,-rpath,$$ORIGIN/../release$(TAG)' $(LIBS)
benches: $(BENCHES:bench/%.c=build/bench/%)
# What has to hold without a peer: memory and the host first, then shapes, then the rows. bench/race.py runs the rows
# against peers.
bench: benches
	build/bench/soak
	build/bench/shapes
	build/bench/limits
	build/bench/scale --max 1000
	build/bench/bench

demo: $(LIB_release) $(D_release)/examples/digits
	cd docs/examples && $(CURDIR)/$(D_release)/examples/digits $(DEMO_ARGS)

# Explanations of the demo: a page about all its regions, and one region as text and JSON.
explain-demo: $(LIB_release) $(D_release)/examples/digits
	cd docs/examples && $(CURDIR)/$(D_release)/examples/digits digits.safetensors \
	  --explain '$(CURDIR)/$(D_release)/digits-explain' >'$(CURDIR)/$(D_release)/digits-explain.log'
	@echo '$(D_release)/digits-explain.html'
# The page in a headless browser, where there is one.
test-html: explain-demo
	@bash tests/test_html.sh '$(CURDIR)/$(D_release)/digits-explain.html' conv2d digits.c classify item_later

# ---- install

install: $(LIB_release) lib/tracejit.pc.in lib/tracejitConfig.cmake.in lib/tracejitConfigVersion.cmake.in
	$(INSTALL) -d '$(DESTDIR)$(includedir)' '$(DESTDIR)$(libdir)/pkgconfig' '$(DESTDIR)$(libdir)/cmake/tracejit'
	$(INSTALL) -m 644 $(PUBLIC) '$(DESTDIR)$(includedir)'
	$(INSTALL) -m 755 $(D_release)/libtracejit.so.$(VERSION) '$(DESTDIR)$(libdir)'
	ln -sf libtracejit.so.$(VERSION) '$(DESTDIR)$(libdir)/libtracejit.so.$(SOMAJOR)'
	ln -sf libtracejit.so.$(SOMAJOR) '$(DESTDIR)$(libdir)/libtracejit.so'
	$(INSTALL) -m 644 $(D_release)/libtracejit.a '$(DESTDIR)$(libdir)'
	$(if $(HAS_MODULE),$(INSTALL) -m 755 $(D_release)/libtracejit-llvm.so '$(DESTDIR)$(libdir)' && \
	  $(STRIP) --strip-unneeded '$(DESTDIR)$(libdir)/libtracejit-llvm.so')
	$(call fill,lib/tracejit.pc.in) >'$(DESTDIR)$(libdir)/pkgconfig/tracejit.pc'
	$(call fill,lib/tracejitConfig.cmake.in) >'$(DESTDIR)$(libdir)/cmake/tracejit/tracejitConfig.cmake'
	$(call fill,lib/tracejitConfigVersion.cmake.in) >'$(DESTDIR)$(libdir)/cmake/tracejit/tracejitConfigVersion.cmake'
# The package files name places relative to their own, so that an installed tree can be moved: pkg-config's by pcfiledir
# (but not in /usr, where it has to know the system's folders), CMake's by its list file.
fill = sed -e 's|@libdir@|$(libdir)|g' -e 's|@pcprefix@|$(call pc_prefix)|g' -e 's|@pclibdir@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(libdir))|g' \
  -e 's|@pcincludedir@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(includedir))|g' \
  -e 's|@includefromlib@|$(shell realpath -m --relative-to='$(libdir)' '$(includedir)')|g' \
  -e 's|@version@|$(VERSION)|g' -e 's|@soname@|libtracejit.so.$(SOMAJOR)|g' $(1)
pc_prefix = $(if $(filter /usr,$(PREFIX)),$(PREFIX),$(if $(filter $(PREFIX)/%,$(libdir)),$${pcfiledir}/$(shell realpath -m --relative-to='$(libdir)/pkgconfig' '$(PREFIX)'),$(PREFIX)))
# Tensors exchanged with PyTorch in one process. PYTHON: an interpreter that has it.
PYTHON ?= python3
test-torch: $(LIB_release)
	@$(PYTHON) tests/oracle/torch_exchange.py $(CURDIR)/$(D_release)/libtracejit.so; rc=$$?; [ $$rc = 77 ] || \
	  { [ $$rc = 0 ] && echo '1 passed, 0 failed'; } || { echo '0 passed, 1 failed'; exit 1; }

test-install: $(LIB_release)
	@rm -rf $(D_release)/stage && $(MAKE) --no-print-directory -s install PREFIX='$(CURDIR)/$(D_release)/stage' \
	  libdir='$(CURDIR)/$(D_release)/stage/lib' includedir='$(CURDIR)/$(D_release)/stage/include' DESTDIR=
	@CC='$(CC)' CXX='$(CXX)' bash tests/test_embed_install.sh '$(CURDIR)/$(D_release)/stage'

# ---- checks of the text

format:
	$(CLANG_FORMAT) -i $(FORMAT_SRC)
format-check:
	$(if $(CLANG_FORMAT),,$(error clang-format is missing: .ci/deps --all))
	@$(CLANG_FORMAT) --dry-run -Werror $(FORMAT_SRC) && echo 'format: $(words $(FORMAT_SRC)) files in order'
tidy:
	$(CLANG_TIDY) --quiet $(SRC_LIB) $(if $(HAS_MODULE),$(SRC_LLVM)) -- -std=c11 -D_GNU_SOURCE $(LLVM_INCLUDE:%=-isystem %)

# The public headers stand alone, in every language and mode that a host may compile them in.
STRICT := -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only
header-check:
	@set -e; for h in $(notdir $(wildcard include/*.h)); do \
	  for cc in gcc clang; do for f in '-std=c11 -Wstrict-prototypes -Wmissing-prototypes' '-std=c11 -DTRACE_NO_MACROS' '-std=gnu17'; do \
	    echo "#include <$$h>" | $$cc -x c $$f $(STRICT) -Iinclude -; done; done; \
	  for cxx in g++ clang++; do for f in -std=c++17 -std=c++20; do \
	    echo "#include <$$h>" | $$cxx -x c++ $$f $(STRICT) -Iinclude -; done; done; echo "header: $$h"; done
	@bash tests/headers.sh
	@set -e; for h in $(notdir $(wildcard include/*.hpp)); do for cxx in g++ clang++; do for f in -std=c++17 -std=c++20; do \
	    echo "#include <$$h>" | $$cxx -x c++ $$f $(STRICT) -Iinclude -; done; done; echo "header: $$h"; done

# docs/abi.list has what a compiled host depends on: exported symbols, prototypes, enum values, struct layouts.
build/abi.list: .ci/abi $(D_release)/libtracejit.so $(PUBLIC)
	@bash .ci/abi $(D_release)/libtracejit.so >$@
abi-check: build/abi.list
	@diff -u docs/abi.list build/abi.list && echo 'abi: as in docs/abi.list' || \
	  { echo 'abi: differs from docs/abi.list; see docs/abi.md, then make abi-update'; exit 1; }
abi-update: build/abi.list
	cp build/abi.list docs/abi.list

clean:
	rm -rf build
