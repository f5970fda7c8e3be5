# The runner against a real CUDA compiler; included by the top Makefile, which
# says what BIN, CACHE and SUDO are.

NVCC_TREE := $(CACHE)/nvcc/$(shell sha256sum test/nvcc/tree.sh | cut -c1-16)

$(NVCC_TREE): | vm-deps
	mkdir -p $(@D)
	$(SUDO) sh test/nvcc/tree.sh $@

# Not part of make test: see the size.
.PHONY: test-nvcc
test-nvcc: $(BIN) $(NVCC_TREE) ## the runner with Debian 13's real nvcc 12.4; once 1.1 GB to download and a minute
	NVCC_TREE=$(NVCC_TREE) KBNODE_BIN=$(abspath $(BIN)) go test -tags nvcc -count=1 -v -timeout 20m ./test/nvcc
