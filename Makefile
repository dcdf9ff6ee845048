# tracejit: one makefile, no recursion. `make` builds the libraries; the other targets are
#
#   check-compile   compile every source file there is, link nothing
#   lib             libtracejit.so, libtracejit.a and the compiler module libtracejit-llvm.so
#   test            install what is missing (deps), build and run all tests; T="expr pool" picks test binaries
#   test-asan test-ubsan test-tsan   the same under a sanitizer
#   tests           build the tests only
#   bench           benchmarks, into build/bench
#   examples        docs/examples/*.c and *.cpp, into build/<variant>/examples
#   demo            deps, build, and run the digits example
#   install         PREFIX=/usr/local DESTDIR=
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
#   tests/test_*.c                            one libcheck program each, linked with all internals (tj_*)
#   tests/*.c, the others                     helpers, linked into each test program
#   tests/embed/*.c *.cpp, docs/examples/*.c *.cpp   programs linked with the public shared library; those in
#                                             tests/embed, and docs/examples/hello*, are run as tests: exit status 0 passes
#   bench/*.c                                 one program each, linked with the public shared library
# Objects go to build/<variant>/, the variant being release, asan, ubsan or tsan plus -clang, -nollvm, -llvm19.

VERSION  := 0.1.0
SOMAJOR  := 0
PREFIX   ?= /usr/local
libdir   ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
O        ?= -O2
LLVM     ?= yes
LLVM_LINK ?= static
INSTALL  ?= install
STRIP    ?= strip
CLANG_FORMAT ?= $(firstword $(shell command -v clang-format-14 clang-format))
CLANG_TIDY ?= $(firstword $(shell command -v clang-tidy-14 clang-tidy))
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
LLVM_COMPONENTS := core target codegen $(addprefix $(LLVM_TARGET),codegen asmparser desc info)
LLVM_LIBS = $(shell $(LLVM_CONFIG) --ldflags) -Wl,--start-group $(shell $(LLVM_CONFIG) --link-static --libs $(LLVM_COMPONENTS)) \
  -Wl,--end-group -static-libstdc++ -static-libgcc -Wl,--gc-sections -Wl,--exclude-libs,ALL -Wl,--as-needed $(LLVM_SYSTEM_LIBS)
# Most of LLVM's system libraries fall away with the sections that use them; only what is installed is offered.
LLVM_SYSTEM_LIBS = $(foreach l,$(filter-out %libz3.so,$(shell $(LLVM_CONFIG) --link-static --system-libs $(LLVM_COMPONENTS))),\
  $(if $(wildcard $(patsubst -l%,/usr/lib/*/lib%.so,$(l)) $(patsubst -l%,/usr/lib/lib%.so,$(l)) $(patsubst -l%,/usr/lib64/lib%.so,$(l))),$(l)))
endif
endif

# Library files the module needs a copy of its own of (it calls the library itself only through its table).
LLVM_MODULE_EXTRA ?= lib/base.c lib/arena.c lib/strbuf.c lib/hash.c

# ---- flags -------------------------------------------------------------------------------------

WARN   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
# fma only where it is written: no contraction by the compiler, in any file.
CFLAGS_ALL := -std=c11 -D_GNU_SOURCE $(O) -g -fPIC -fvisibility=hidden -ffp-contract=off -pthread $(WARN) \
  -DTJ_LLVM_DEFAULT_DIR='"$(libdir)"' $(CFLAGS)
CXXFLAGS_ALL := -std=c++17 $(O) -g -Wall -Wextra -Werror -pthread $(CXXFLAGS)
LIBS   := -lm -ldl -lpthread
SOFLAGS := -shared -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,-Bsymbolic

TAG := $(if $(CC_IS_CLANG),-clang)$(if $(filter no,$(LLVM)),-nollvm)$(if $(LLVM_MAJOR),$(if $(filter 22,$(LLVM_MAJOR)),,-llvm$(LLVM_MAJOR)))$(if $(filter shared,$(LLVM_LINK)),-shared)
VARIANTS := release asan ubsan tsan
# Sanitizers make gcc's flow warnings guess; the release build has them all.
SAN_WARN := $(if $(CC_IS_CLANG),,-Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds)
SAN_release :=
SAN_asan  := -fsanitize=address -fno-omit-frame-pointer $(SAN_WARN)
SAN_ubsan := -fsanitize=undefined -fno-sanitize-recover=all $(SAN_WARN)
SAN_tsan  := -fsanitize=thread $(SAN_WARN)
# clang links a sanitizer's runtime into programs only, so its shared objects have undefined symbols.
SAN_SO := $(if $(CC_IS_CLANG),-Wl,-z,nodefs)

# ---- sources -----------------------------------------------------------------------------------

SRC_ALL  := $(wildcard lib/*.c trace/*.c jit/*.c kernels/*.c)
SRC_LLVM := $(filter %_llvm.c,$(SRC_ALL))
# One of the two files defines the CPU backend: the compiler's, or the one that says there is none.
SRC_LIB  := $(filter-out %_llvm.c $(if $(filter no,$(LLVM)),jit/backend_cpu.c,jit/backend_none.c),$(SRC_ALL))
TEST_SRC := $(wildcard tests/test_*.c)
TEST_AUX := $(filter-out $(TEST_SRC),$(wildcard tests/*.c))
TEST_NAMES := $(patsubst tests/%.c,%,$(TEST_SRC))
EMBED    := $(basename $(wildcard tests/embed/*.c tests/embed/*.cpp))
EXAMPLES := $(notdir $(wildcard docs/examples/*.c docs/examples/*.cpp))
BENCHES  := $(wildcard bench/*.c)
PUBLIC   := $(wildcard include/*.h include/*.hpp)
FORMAT_SRC := $(wildcard $(foreach d,include lib trace jit kernels tests tests/embed bench docs/examples,$(foreach e,c h hpp cpp,$(d)/*.$(e))))
HAS_MODULE := $(if $(filter no,$(LLVM)),,$(if $(SRC_LLVM),yes))
CHECK_LIBS = $(shell pkg-config --libs check 2>/dev/null || echo -lcheck -lsubunit -lrt -lm -lpthread)

# ---- rules of a variant ------------------------------------------------------------------------

# $(1) variant. D_<variant> is its directory.
define VARIANT
D_$(1) := build/$(1)$(TAG)
OBJ_$(1) := $(SRC_LIB:%.c=build/$(1)$(TAG)/%.o)
OBJ_LLVM_$(1) := $(SRC_LLVM:%.c=build/$(1)$(TAG)/%.o)
LIB_$(1) := $$(D_$(1))/libtracejit.so $$(D_$(1))/libtracejit.a $(if $(HAS_MODULE),build/$(1)$(TAG)/libtracejit-llvm.so)
TESTS_$(1) := $(TEST_NAMES:%=build/$(1)$(TAG)/%)
EMBED_$(1) := $(EMBED:%=build/$(1)$(TAG)/%)
EXAMPLES_$(1) := $(basename $(EXAMPLES:%=build/$(1)$(TAG)/examples/%))

# A change of flags rebuilds; a change of this file alone doesn't.
$$(D_$(1))/flags: FORCE
	@mkdir -p $$(@D); printf '%s\n' '$(subst ','\'',$(CC) $(CFLAGS_ALL) $(SAN_$(1)))' >$$@.new; cmp -s $$@.new $$@ && rm -f $$@.new || mv $$@.new $$@

$$(D_$(1))/%_llvm.o: %_llvm.c $$(D_$(1))/flags
	$$(if $$(LLVM_CONFIG),,$$(error no llvm-config of version 19 or newer: run "make deps", or build with LLVM=no))
	$$(call say,CC,$$<)
	@mkdir -p $$(@D)
	$$(Q)$(CC) $(CFLAGS_ALL) $(SAN_$(1)) -isystem $(LLVM_INCLUDE) -MMD -MP -c $$< -o $$@

$$(D_$(1))/%.o: %.c $$(D_$(1))/flags
	$$(call say,CC,$$<)
	@mkdir -p $$(@D)
	$$(Q)$(CC) $(CFLAGS_ALL) $(SAN_$(1)) -MMD -MP -c $$< -o $$@

# The library's objects with every symbol visible: tests link these.
$$(D_$(1))/libtj.a: $$(OBJ_$(1))
	$$(call say,AR,$$@)
	@rm -f $$@
	$$(Q)ar rcs $$@ $$^

$$(D_$(1))/libtracejit.so.$(VERSION): $$(OBJ_$(1)) lib/tracejit.map
	$$(call say,LD,$$@)
	$$(Q)$(CC) $(SAN_$(1)) $(SOFLAGS) $(if $(SAN_$(1)),$(SAN_SO)) -Wl,-soname,libtracejit.so.$(SOMAJOR) \
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
	$$(Q)$(CXX) $(SAN_$(1)) $(SOFLAGS) $(if $(SAN_$(1)),$(SAN_SO)) -Wl,--version-script=lib/module.map -o $$@ \
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
$$(D_$(1))/tests/embed/%: tests/embed/%.cpp $$(D_$(1))/libtracejit.so $(PUBLIC)
	$$(call say,CXXLD,$$@)
	@mkdir -p $$(@D)
	$$(Q)$(CXX) $(CXXFLAGS_ALL) $(SAN_$(1)) -Iinclude -o $$@ $$< -L$$(D_$(1)) -ltracejit '-Wl,-rpath,$$$$ORIGIN/../..' $(LIBS)

$$(D_$(1))/examples/%: docs/examples/%.c $$(D_$(1))/libtracejit.so $(PUBLIC)
	$$(call say,CCLD,$$@)
	@mkdir -p $$(@D)
	$$(Q)$(CC) -std=c11 $(O) -g -Wall -Wextra -Werror -pthread $(SAN_$(1)) -Iinclude -o $$@ $$< \
	  -L$$(D_$(1)) -ltracejit '-Wl,-rpath,$$$$ORIGIN/..' $(LIBS)
$$(D_$(1))/examples/%: docs/examples/%.cpp $$(D_$(1))/libtracejit.so $(PUBLIC)
	$$(call say,CXXLD,$$@)
	@mkdir -p $$(@D)
	$$(Q)$(CXX) $(CXXFLAGS_ALL) $(SAN_$(1)) -Iinclude -o $$@ $$< -L$$(D_$(1)) -ltracejit '-Wl,-rpath,$$$$ORIGIN/..' $(LIBS)

-include $$(OBJ_$(1):.o=.d) $$(OBJ_LLVM_$(1):.o=.d) $(patsubst %.c,build/$(1)$(TAG)/%.d,$(TEST_SRC) $(TEST_AUX))
endef
$(foreach v,$(VARIANTS),$(eval $(call VARIANT,$(v))))

# ---- targets -----------------------------------------------------------------------------------

.PHONY: FORCE all lib check-compile tests examples bench deps demo install clean test test-asan test-ubsan test-tsan \
  test-install format format-check tidy header-check abi-check abi-update
FORCE:

all: lib tests examples bench
lib: $(LIB_release)
check-compile: $(OBJ_release) $(if $(filter no,$(LLVM)),,$(OBJ_LLVM_release))
tests: $(TESTS_release) $(EMBED_release)
examples: $(EXAMPLES_release)
deps:
	@bash .ci/deps $(if $(filter no,$(LLVM)),--no-llvm)

clean:
	rm -rf build
