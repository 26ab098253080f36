# The targets that run things on this host: the demo, the kill test, the benchmarks, the fuzzer.

KILLS ?= $(if $(KINDS),2000,200)
SEED ?= 1
FUZZ_SECONDS ?= 20
BENCH_SRC := $(sort $(wildcard bench/*.c))
# Our program of bench/peers.sh is among them, so that it is linked with what the library needs, and whenever that changes.
BENCH := $(BENCH_SRC:bench/%.c=$(BUILD)/bench/%) $(BUILD)/bench/peers/regroup

$(BENCH): $(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(STATIC)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(LIBS)

check-run: $(BENCH) # they are not run there, but they build

.PHONY: demo check-kills check-coordinator-kills check-cases-long bench bench-peers
demo:
	@sh scripts/setup.sh
	@$(MAKE) --no-print-directory all BUILD=$(BUILD) SAN=$(SAN)
	@bash scripts/demo.sh $(BUILD)

# KILL_BYTES, the size of the operations that are hit, passes through the environment (64 MiB). KINDS=all hits every kind
# of operation and sub-groups (KILL_BYTES: of the largest; 1 MiB), KINDS=all_gather,sub_broadcast some of them, one after
# the other; TRANSPORT=tcp or shm says over what.
check-kills:
	@sh scripts/setup.sh
	@$(MAKE) --no-print-directory $(BUILD)/tests/procs BUILD=$(BUILD) SAN=$(SAN)
	@KILLS=$(KILLS) SEED=$(SEED) KINDS=$(KINDS) $(if $(TRANSPORT),RG_TRANSPORT=$(TRANSPORT)) $(BUILD)/tests/procs kills

# Random quantised, or sparse, collectives (ROUNDS of them) with a kill after each EVERY or so, over what TRANSPORT says;
# the last line is JSON.
.PHONY: check-quantised check-sparse
check-quantised check-sparse:
	@sh scripts/setup.sh
	@$(MAKE) --no-print-directory $(BUILD)/tests/procs BUILD=$(BUILD) SAN=$(SAN)
	@ROUNDS=$(or $(ROUNDS),10000) EVERY=$(or $(EVERY),20) SEED=$(SEED) \
	 $(if $(TRANSPORT),RG_TRANSPORT=$(TRANSPORT)) $(BUILD)/tests/procs $(patsubst check-quantised,quant,$(@:check-sparse=sparse))

# The coordinator killed at random moments of a group of four, KILLS times in each MODE: restart (and stops), standby,
# takeover, or all of them. The last line is JSON.
check-coordinator-kills:
	@sh scripts/setup.sh
	@$(MAKE) --no-print-directory $(BUILD)/tests/procs BUILD=$(BUILD) SAN=$(SAN)
	@KILLS=$(KILLS) SEED=$(SEED) MODE=$(MODE) $(BUILD)/tests/procs coordinator-kills

# The full forms of the numbered cases of which `make check` runs short ones (tests/procs/README.md). PROCS_ONLY=case_14
# runs those with that in their name; KILL_BYTES is the size of the operations that are hit there (256 MiB).
check-cases-long:
	@sh scripts/setup.sh
	@$(MAKE) --no-print-directory $(BUILD)/tests/procs BUILD=$(BUILD) SAN=$(SAN)
	@$(BUILD)/tests/procs cases-long

bench: all $(BENCH)
	@for c in all_reduce all_gather reduce_scatter broadcast all_to_all; do for n in 2 4; do \
	    echo "$$c, $$n members:"; $(BUILD)/regroup bench $$c -n $$n -b 4K -e 16M -f 16 || exit 1; done; done
	@echo "barrier, 4 members:"; $(BUILD)/regroup bench barrier -n 4

# Beside Gloo, Open MPI and MPICH; PEERS_... in the environment say what (bench/peers.sh). PEERS_QUICK=1 takes minutes.
bench-peers:
	@SETUP_PEERS=1 sh scripts/setup.sh
	@$(MAKE) --no-print-directory all $(BENCH) BUILD=$(BUILD)
	@bash bench/peers.sh $(BUILD)

# Shared state: what comparing costs, and what a newcomer costs those who work.
.PHONY: bench-state
bench-state: all $(BENCH)
	@$(BUILD)/bench/bench_state 1024
	@$(BUILD)/bench/bench_join 256 25

# Quantised all-reduces beside f32 at 100 Mbit/s; RATE_MBIT, DELAY_MS, ELEMENTS, FORMS in the environment (bench/quantised.sh).
.PHONY: bench-quantised
bench-quantised: all $(BENCH) $(BUILD)/tests/wan
	@$(BUILD)/bench/bench_codecs
	@bash bench/quantised.sh $(BUILD)

# Four peers in network namespaces, far apart: loss beside bytes and time, data-parallel and by outer optimisers (needs root).
.PHONY: demo-wan
demo-wan:
	@SETUP_WAN=1 sh scripts/setup.sh
	@$(MAKE) --no-print-directory all $(BUILD)/tests/wan BUILD=$(BUILD) SAN=$(SAN)
	@bash scripts/demo_wan.sh $(BUILD)

.PHONY: bench-hierarchy
bench-hierarchy: all $(BUILD)/tests/wan
	@bash bench/hierarchy.sh $(BUILD)

# Sparse collectives: on this host, and between namespaces of little bandwidth.
.PHONY: bench-sparse
bench-sparse: all $(BUILD)/bench/bench_sparse $(BUILD)/tests/wan
	@$(BUILD)/bench/bench_sparse
	@bash bench/sparse.sh $(BUILD)

# Far apart: everything that has to be shown there, as a table and JSON. WAN_ONLY="3 5" and WAN_QUICK=1 (bench/wan.sh).
.PHONY: bench-wan
bench-wan: all $(BENCH) $(BUILD)/tests/wan $(BUILD)/tests/procs
	@bash bench/wan.sh $(BUILD)

# Rails, a ring, uneven members, an order that was measured, alone; PARTS, ROUNDS and MIB in the environment.
.PHONY: bench-wan-links
bench-wan-links: all $(BUILD)/tests/wan
	@bash bench/wan-links.sh $(BUILD)

# ---- Fuzzing --------------------------------------------------------------------------------------------------------
# Each tests/fuzz/<name>.c is one libFuzzer program; the library below it is built with the same instrumentation, in a
# folder of its own. What was found stays in build-fuzz/corpus/<name>.
FUZZ_PROGRAMS := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(sort $(wildcard tests/fuzz/*.c)))
.PHONY: fuzz fuzz-programs
fuzz-programs: $(FUZZ_PROGRAMS)
# The options of the command are configuration too.
$(BUILD)/fuzz/fuzz_config: $(BUILD)/obj/tools/numbers.o
$(FUZZ_PROGRAMS): $(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(TESTLIB_OBJ) $(STATIC)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(subst fuzzer-no-link,fuzzer,$(SAN_FLAGS)) $(LDFLAGS) -o $@ $^ $(LIBS)

fuzz:
	@command -v $(CLANG) > /dev/null || { echo "fuzz: libFuzzer comes with clang: apt-get install -y clang"; exit 77; }
	@$(MAKE) --no-print-directory fuzz-programs CC=$(CLANG) SAN=fuzz BUILD=build-fuzz
	@FUZZ_ONLY="$(FUZZ_ONLY)" bash scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)
