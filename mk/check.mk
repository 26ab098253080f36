# What `make check` runs, and the smaller checks it is made of. A test is picked up by its place:
#   tests/unit/*.c             one Criterion program of all of them
#   tests/<name>.c             one program each
#   tests/sim/*.c, tests/procs/*.c, tests/torture/*.c, tests/vm/*.c, tests/wan/*.c   one program for each
#   tests/adapter/*.c          tests/conformance.c once more, with an adapter made of nothing (where RDMA is built)
#   tests/header/*             must compile as C99 and as C++
# tests/plain stands in for Criterion where that cannot run (SAN=tsan).
# tests/lib/*.c is linked to every program. Every program links the static library, whose internals it may use.

UNIT_SRC := $(sort $(wildcard tests/unit/*.c))
TESTLIB_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(sort $(wildcard tests/lib/*.c)))
TEST_UNIT := $(if $(UNIT_SRC),$(BUILD)/tests/unit)
PLAIN_OBJ := $(if $(filter tsan,$(SAN)),$(BUILD)/obj/tests/plain/runner.o)
TEST_SINGLE := $(patsubst tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/*.c)))
TEST_DIRS := $(foreach d,sim procs torture vm wan,$(if $(wildcard tests/$(d)/*.c),$(BUILD)/tests/$(d)))
TEST_ADAPTER := $(if $(filter 1,$(RDMA)),$(BUILD)/tests/conformance-adapter)
TEST_PROGRAMS := $(TEST_UNIT) $(TEST_SINGLE) $(TEST_DIRS) $(TEST_ADAPTER)

# What fails for lack of memory is said by tests/unit/no_memory.c.
$(TEST_UNIT): private LDFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
$(TEST_UNIT): $(patsubst %.c,$(BUILD)/obj/%.o,$(UNIT_SRC)) $(TESTLIB_OBJ) $(PLAIN_OBJ) $(STATIC)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(CRITERION_LIBS) $(LIBS)

$(TEST_SINGLE): $(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TESTLIB_OBJ) $(STATIC)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(CRITERION_LIBS) $(LIBS)

# What the program defines itself comes before the libraries of that name.
ADAPTER_SRC := tests/conformance.c $(sort $(wildcard tests/adapter/*.c))
$(BUILD)/tests/conformance-adapter: $(patsubst %.c,$(BUILD)/obj/%.o,$(ADAPTER_SRC)) $(TESTLIB_OBJ) $(STATIC)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(LIBS)

# tests/torture stands between the library and the C library: the names are those of its CALL_LIST.
TORTURE_CALLS := free $(shell sed -n 's/^    X.\([a-z_0-9]*\), .*/\1/p' tests/torture/torture.h 2>/dev/null)
$(BUILD)/tests/torture: private LDFLAGS += $(TORTURE_CALLS:%=-Wl$(comma)--wrap=%)

define dir_program
$(BUILD)/tests/$(1): $(patsubst %.c,$(BUILD)/obj/%.o,$(sort $(wildcard tests/$(1)/*.c))) $(TESTLIB_OBJ) $(STATIC)
	@mkdir -p $$(@D)
	$$(call say,LINK,$$@)
	$$(Q)$$(LINK) -o $$@ $$^ $$(CRITERION_LIBS) $$(LIBS)
endef
$(foreach d,sim procs torture vm wan,$(if $(wildcard tests/$(d)/*.c),$(eval $(call dir_program,$(d)))))

.PHONY: setup tests unit header pure exports check
setup:
	@sh scripts/setup.sh

tests: $(TEST_PROGRAMS)

# One test file against the few sources it needs, for work on a part while others are in pieces:
#   make one T=tests/unit/test_wire.c S='src/core/wire.c'
.PHONY: one
one: $(BUILD)/flags
	@mkdir -p $(BUILD)/one
	$(CC) $(CPPFLAGS) $(filter-out -MMD -MP,$(TEST_CFLAGS)) -o $(BUILD)/one/$(basename $(notdir $(T))) $(T) $(S) $(CRITERION_LIBS) $(LIBS)
	$(BUILD)/one/$(basename $(notdir $(T)))

unit: $(TEST_UNIT)
	$(TEST_UNIT)

header:
	@CC='$(CC)' CXX='$(CXX)' sh tests/header/check.sh

# Sanitizers add calls of their own to every object, so the names are looked at in a plain build only.
pure: $(LIB_OBJ)
	$(if $(SAN),@echo "pure: not looked at under SAN=$(SAN)",@CC='$(CC)' sh scripts/pure.sh $(BUILD))

exports: $(SHARED)
	$(if $(SAN),@echo "exports: not looked at under SAN=$(SAN)",@sh scripts/exports.sh $(SHARED))

# More of what `make check` has a part of: bigger instances of the model; every place where a call can fail.
.PHONY: model torture
model:
	@CC='$(CC)' bash tests/model/check.sh $(BUILD) large

TORTURE_EACH ?= 3
torture: $(BUILD)/tests/torture
	$(BUILD)/tests/torture --stride 1 --each $(TORTURE_EACH) --seconds 86400

# clang's analyser, over everything or over ANALYZE="file.c ...".
.PHONY: analyze
analyze:
	@command -v $(CLANG) > /dev/null || { echo "analyze: needs clang: apt-get install -y clang"; exit 77; }
	@bash scripts/analyze.sh $(CLANG) $(ANALYZE)

# The set-up comes first and the rest is a make of its own: what pkg-config says is only known after it.
check:
	@sh scripts/setup.sh
	@$(MAKE) --no-print-directory check-run BUILD=$(BUILD) SAN=$(SAN)

.PHONY: check-run
check-run: all tests
	@MAKE='$(MAKE_COMMAND)' BUILD='$(BUILD)' SAN='$(SAN)' CC='$(CC)' CXX='$(CXX)' bash tests/run

# The simulator at length, on two processors: SEEDS of all kinds of groups together, and the planted faults.
.PHONY: check-sim-long
check-sim-long: $(BUILD)/tests/sim
	@n=$$(($(or $(SEEDS),50000) / 8)); a=$(BUILD)/sim-long.1; b=$(BUILD)/sim-long.2; \
	$< --each $$n > $$a & p=$$!; $< --each $$n --skip $$n > $$b; rb=$$?; wait $$p; ra=$$?; cat $$a $$b; \
	awk '/^[0-9]+ passed,/ { p += $$1; f += $$3; s += $$5 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s }' $$a $$b; \
	exit $$((ra | rb))
