# Builds, checks and installs Regroup with make and a C compiler alone: no generator, no configure step.
# Every *.c file in the folders named below is picked up by being there; `make help` lists what can be asked for.
# Products go to $(BUILD) (build, or build-asan and build-tsan with SAN=), nothing is written elsewhere.
# It must not decide what the tests mean: that is in tests/run and in the programs themselves.

ifeq ($(origin CC),default)
CC := gcc
endif
AR := ar
PKG_CONFIG ?= pkg-config
CLANG ?= $(or $(shell command -v clang-14 2>/dev/null),$(shell command -v clang 2>/dev/null),clang)
CLANG_FORMAT ?= $(or $(shell command -v clang-format-14 2>/dev/null),clang-format)
SAN ?=
comma := ,
BUILD ?= build$(if $(SAN),-$(SAN))
PREFIX ?= /usr/local
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include

VERSION := $(shell awk '/define RG_VERSION_(MAJOR|MINOR|PATCH)/ { v = v (v == "" ? "" : ".") $$3 } END { print v }' include/regroup.h)
SONAME := libregroup.so.$(firstword $(subst ., ,$(VERSION)))

# ---- Flags ----------------------------------------------------------------------------------------------------------
# -ffp-contract=off: a fused multiply-add on one machine and not on another would give members different bits.
WARN := -Wall -Wextra -Wshadow -Werror
OPT ?= -O3 -g
SAN_FLAGS_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
SAN_FLAGS_tsan := -fsanitize=thread -fno-omit-frame-pointer
SAN_FLAGS_fuzz := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
ifneq ($(SAN),)
ifeq ($(SAN_FLAGS_$(SAN)),)
$(error SAN=$(SAN) is not known: use SAN=asan or SAN=tsan)
endif
OPT := -O1 -g
endif
SAN_FLAGS := $(SAN_FLAGS_$(SAN))
# The fuzzer's own main() belongs to the fuzz programs only; everything else is linked without it.
SAN_LINK := $(subst fuzzer-no-link$(comma),,$(SAN_FLAGS))

PKGS := libuv jansson libxxhash openssl
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(PKGS) 2>/dev/null || echo -luv -ljansson -lxxhash -lssl -lcrypto)
# AES-GCM several times faster than OpenSSL's, where it is installed (src/os/gcm.c).
ifeq ($(shell printf '\043include <intel-ipsec-mb.h>\n' | $(CC) -E -xc - > /dev/null 2>&1 && echo yes),yes)
CPPFLAGS += -DRG_HAVE_IPSEC_MB
OPTIONAL_LIBS := -lIPSec_MB
endif
# InfiniBand and RoCE, where the libraries are; RDMA=0 leaves them out.
RDMA ?= $(shell $(PKG_CONFIG) --exists libibverbs librdmacm 2>/dev/null && echo 1 || echo 0)
ifeq ($(RDMA),1)
CPPFLAGS += -DRG_HAVE_RDMA
OPTIONAL_LIBS += $(shell $(PKG_CONFIG) --libs libibverbs librdmacm)
endif
CRITERION_CFLAGS := $(shell $(PKG_CONFIG) --cflags criterion 2>/dev/null)
CRITERION_LIBS := $(shell $(PKG_CONFIG) --libs criterion 2>/dev/null || echo -lcriterion)
# Criterion's sandbox maps memory where ThreadSanitizer allows none: there a stand-in with its words runs the tests.
ifeq ($(SAN),tsan)
CRITERION_CFLAGS := -Itests/plain
CRITERION_LIBS :=
endif

CPPFLAGS += -Iinclude -Isrc -I.
BASE_CFLAGS := -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) -ffp-contract=off -fPIC -pthread -MMD -MP $(SAN_FLAGS) $(PKG_CFLAGS)
LIB_CFLAGS := $(BASE_CFLAGS) -fvisibility=hidden $(CFLAGS)
TEST_CFLAGS := $(BASE_CFLAGS) -Itests -Itests/lib $(CRITERION_CFLAGS) $(CFLAGS)
LIBS := $(PKG_LIBS) $(OPTIONAL_LIBS) -lm -pthread
LINK = $(CC) $(SAN_LINK) $(LDFLAGS)

# ---- Files ----------------------------------------------------------------------------------------------------------
LIB_SRC := $(sort $(wildcard src/*.c src/*/*.c algorithms/*.c) $(filter-out $(if $(filter 1,$(RDMA)),,transports/rdma%),$(wildcard transports/*.c)) $(wildcard gpu/none.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/gen/algorithms.o
TOOL_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tools/*.c))
ALGORITHMS := $(sort $(basename $(notdir $(wildcard algorithms/*.c))))
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/%,$(wildcard examples/*.c))
STATIC := $(BUILD)/libregroup.a
SHARED := $(BUILD)/libregroup.so
COMMAND := $(if $(TOOL_OBJ),$(BUILD)/regroup)

# V=1 shows whole commands.
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:
.PHONY: all FORCE

all: $(STATIC) $(SHARED) $(COMMAND) $(EXAMPLES) optional

include $(sort $(wildcard mk/*.mk))

# ---- Compiling ------------------------------------------------------------------------------------------------------
# Objects depend on this file, which changes when the compiler or the flags do.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(CC) $(CPPFLAGS) $(LIB_CFLAGS) $(LDFLAGS)' | cmp -s - $@ || \
	 printf '%s\n' '$(CC) $(CPPFLAGS) $(LIB_CFLAGS) $(LDFLAGS)' > $@

$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(LIB_CFLAGS) -c -o $@ $<

$(BUILD)/obj/tests/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(TEST_CFLAGS) -c -o $@ $<

# The table of algorithms is made from the folder, so that adding an algorithm is adding a file.
$(BUILD)/gen/algorithms.c: FORCE
	@mkdir -p $(@D)
	@sh scripts/algorithms.sh $(ALGORITHMS) > $@.new
	@if cmp -s $@.new $@; then rm -f $@.new; else mv $@.new $@; fi

$(BUILD)/obj/gen/algorithms.o: $(BUILD)/gen/algorithms.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(LIB_CFLAGS) -c -o $@ $<

# ---- Linking --------------------------------------------------------------------------------------------------------
# An archive keeps members of deleted files unless it is made anew.
$(STATIC): $(LIB_OBJ)
	@rm -f $@
	$(call say,AR,$@)
	$(Q)$(AR) rcs $@ $^

$(SHARED): $(LIB_OBJ) regroup.map
	$(call say,LINK,$@)
	$(Q)$(LINK) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=regroup.map $(if $(SAN),,-Wl,-z,defs) \
	    -o $@.$(VERSION) $(LIB_OBJ) $(LIBS)
	@ln -sf $(@F).$(VERSION) $(@D)/$(SONAME)
	@ln -sf $(SONAME) $@

$(BUILD)/regroup: $(TOOL_OBJ) $(STATIC)
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $(TOOL_OBJ) $(STATIC) $(LIBS)

# Examples use nothing but the public interface, so they are linked the way a user's program is.
$(EXAMPLES): $(BUILD)/%: $(BUILD)/obj/examples/%.o $(SHARED)
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $< -L$(BUILD) -lregroup -Wl,-rpath,'$$ORIGIN' -lm -pthread

.PHONY: optional
optional:
	@PKG_CONFIG='$(PKG_CONFIG)' sh scripts/optional.sh $(BUILD)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
