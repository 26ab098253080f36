# Housekeeping: formatting, cleaning, help, and the targets that run other people's programs.

FORMAT_FILES = $(sort $(wildcard include/*.h src/*.[ch] src/*/*.[ch] transports/*.[ch] algorithms/*.[ch] gpu/*.[ch] \
    tools/*.[ch] examples/*.[ch] bench/*.[ch] tests/*.[ch] tests/*/*.[ch]))

.PHONY: format format-check clean help
format:
	$(CLANG_FORMAT) -i $(FORMAT_FILES)

format-check:
	$(CLANG_FORMAT) --dry-run -Werror $(FORMAT_FILES)

# What a script can see of the rules in CONTRIBUTING.md.
.PHONY: style
style:
	@bash scripts/style.sh

clean:
	rm -rf build build-asan build-tsan build-fuzz

help:
	@echo 'make                  libraries, the regroup command, the examples, in build/'
	@echo 'make demo             four peers train a small model; one is killed, one joins (installs what is missing)'
	@echo 'make demo-wan         the same far apart, by outer optimisers too: loss beside bytes and time, CSV and PNG (needs root)'
	@echo 'make check            every test; the last line counts them (installs what is missing). SAN=asan or SAN=tsan'
	@echo 'make check-kills      SIGKILLs at random moments: KILLS=200 SEED=1; KINDS=all: in every kind of operation, TRANSPORT=tcp'
	@echo 'make check-quantised check-sparse   random collectives of these kinds with kills: ROUNDS=10000 EVERY=20 SEED=1 TRANSPORT=tcp'
	@echo 'make check-coordinator-kills   the same for the coordinator: KILLS=200 SEED=1 MODE=all|restart|standby|takeover'
	@echo 'make check-cases-long   hundreds of kills, thousands of groups, a million operations: tens of minutes'
	@echo 'make check-sim-long     SEEDS=50000 of the simulator, on two processors: a minute'
	@echo 'make unit tests       the Criterion tests alone; build every test program without running it'
	@echo 'make header pure exports   the checks of the headers, of the pure parts, of the exported names'
	@echo 'make check-vm         soft-RoCE, dying and frozen machines, in virtual machines (qemu, root): VM_ONLY=name, VM_SHORT=1'
	@echo 'make fuzz             libFuzzer (clang) over codec, core, state files, configuration: FUZZ_SECONDS=20, FUZZ_ONLY=name'
	@echo 'make analyze          the static analyser of clang over all sources; ANALYZE="src/config.c ..." for some'
	@echo 'make model            the protocol as a Promela model, bigger instances than in make check (spin)'
	@echo 'make torture          every allocation and system call fails in turn: TORTURE_EACH=3 calls at each place'
	@echo 'make bench            our collectives on this host; make bench-peers: beside Gloo, Open MPI and MPICH'
	@echo 'make bench-state      shared state: what comparing costs, and what a newcomer costs those who work'
	@echo 'make bench-sparse     sparse lists, placements, top-k: here and over links of 100 Mbit/s (the latter needs root)'
	@echo 'make bench-hierarchy  groups over hosts and sites with slow links between them (needs root)'
	@echo 'make bench-quantised  codecs, and quantised all-reduces beside f32 over slow links (needs root)'
	@echo 'make bench-wan        members far apart, emulated: all that is promised, as a table and JSON (needs root; half an'
	@echo '                      hour; WAN_QUICK=1: minutes; WAN_ONLY="1 2": rails and rings, uneven members)'
	@echo 'make install          PREFIX=/usr/local DESTDIR=; make uninstall removes it'
	@echo 'make format           clang-format 14; make format-check and make style change nothing'
	@echo 'make clean            removes the build folders'
	@echo 'Options: CC=clang-14  BUILD=folder  SAN=asan|tsan  V=1'
