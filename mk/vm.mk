# Tests in virtual machines: real verbs (soft-RoCE), machines that lose their power. VM_ONLY="port frozen" runs scenarios
# with that in their name, VM_SHORT=1 a few minutes of them, VM_KILLS=100 kills of a process; tests/vm/run.sh has the rest.
.PHONY: check-vm
check-vm:
	@sh scripts/setup.sh
	@$(MAKE) --no-print-directory -s all tests BUILD=$(BUILD) SAN=$(SAN)
	@bash tests/vm/run.sh $(BUILD)
