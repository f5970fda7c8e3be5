# Tests the runner against a real CUDA compiler; included by the top Makefile, which
# defines BIN, CACHE and SUDO.

NVCC_TREE := $(CACHE)/nvcc/$(shell sha256sum test/nvcc/tree.sh | cut -c1-16)

$(NVCC_TREE): | vm-deps
	mkdir -p $(@D)
	$(SUDO) sh test/nvcc/tree.sh $@

# Not part of make test because of the download size.
.PHONY: test-nvcc
test-nvcc: $(BIN) $(NVCC_TREE) ## test the runner with Debian 13's real nvcc 12.4; downloads 1.1 GB once, then takes a minute
	NVCC_TREE=$(NVCC_TREE) KBNODE_BIN=$(abspath $(BIN)) go test -tags nvcc -count=1 -v -timeout 20m ./test/nvcc
