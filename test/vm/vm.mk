# The virtual machine rig; included by the top Makefile, which defines BIN, BKSTUB,
# AGENT and SUDO. See test/vm/README.md.

VM_PARALLEL ?= $(shell n=$$(( $$(nproc) / 2 )); echo $$(( n > 1 ? n : 1 )))
VM_NVML     := build/libnvidia-ml.so.1

VM_ENV = AGENT=$(abspath $(AGENT)) OLD_AGENT=$(abspath $(OLD_AGENT)) KBNODE_BIN=$(abspath $(BIN)) BKSTUB_BIN=$(abspath $(BKSTUB)) \
	NVML_LIB=$(abspath $(VM_NVML)) KBNODE_VM_LOGS=$(abspath build/vm-logs) \
	KBNODE_DEBS=$(abspath build/debs) KBNODE_SCREENS=$(abspath build/screens)

$(VM_NVML): $(wildcard test/nvml/*) go.mod | deps-$(HOST_ARCH)
	@mkdir -p $(@D)
	test/nvml/build.sh $@

# What tests and people need: packages on this machine, and files for the virtual one.
.PHONY: vm-ready
vm-ready: $(AGENT) $(OLD_AGENT) $(BIN) $(BKSTUB) $(VM_NVML) | vm-deps

.PHONY: vm-deps
vm-deps:
	@for need in qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils mmdebstrap:mmdebstrap dpkg-scanpackages:dpkg-dev mkfs.ext4:e2fsprogs xz:xz-utils \
		/usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring; do \
		PATH=$$PATH:/usr/sbin:/sbin; \
		command -v "$${need%%:*}" >/dev/null || [ -r "$${need%%:*}" ] || missing="$${missing-} $${need#*:}"; \
	done; \
	if [ -n "$${missing-}" ]; then \
		echo "installing$$missing"; \
		$(SUDO) apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

VM_TEST = rm -rf build/vm-logs; $(VM_ENV) TEST_FORMAT=standard-verbose test/retest.sh

.PHONY: test-story
test-story: vm-ready $(GOTESTSUM) ## run the story of a node in the virtual machine, from install to uninstall
	$(VM_TEST) story ./test/vm -tags vm -count=1 -timeout 60m -run '^TestStory$$'

# selects NAME …: not empty if RUN, a regular expression as that of go test, selects a scenario with one of these names.
selects = $(if $(RUN),$(shell printf 'Test%s\n' $(1) | grep -E -e '$(firstword $(subst /, ,$(RUN)))'),all)

.PHONY: test-scenarios
test-scenarios: vm-ready $(GOTESTSUM) ## run all scenarios in the virtual machine, in about six hours; RUN=regex selects some
	$(if $(call selects,Package Tutorial CloudInit),$(MAKE) debs)
	$(if $(call selects,Ansible),$(MAKE) ansible-lint)
	$(if $(call selects,Ansible),$(call need,ansible-playbook,ansible-core))
	$(VM_TEST) scenarios ./test/vm -tags vm -count=1 -timeout 600m -parallel $(VM_PARALLEL) -run '$(or $(RUN),.)'

.PHONY: stale
stale: ## list the scenarios whose files have changed since they were last green here
	@go run ./test/vm/kbvm stale $(CACHE)/last-green.txt test/vm/scenarios

# Needs Debian's python3, even if PATH has another one first.
.PHONY: screenshots
screenshots: ## draw real terminal sessions in the virtual machine to docs/screens
	@/usr/bin/python3 -c 'import pyte' 2>/dev/null || { $(SUDO) apt-get update -qq; DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends python3-pyte >/dev/null; }
	$(MAKE) test-scenarios RUN='^TestScreens$$'
	/usr/bin/python3 test/vm/screens.py build/screens docs/screens

.PHONY: ansible-lint
ansible-lint: ## lint the Ansible role and its example with the strictest profile
	$(call need,ansible-lint,ansible-lint)
	cd packaging/ansible && ansible-lint --offline --profile production site.yml roles/kbnode

.PHONY: bench-vm
bench-vm: vm-ready ## measure a job's start and a node at rest, in the virtual machine
	$(VM_ENV) go test -tags vm -run '^$$' -bench '$(or $(RUN),.)' -benchtime 1x -timeout 30m ./test/vm

.PHONY: vm-image
vm-image: vm-ready ## build the virtual machine's template if it is not cached
	$(VM_ENV) go run ./test/vm/kbvm image

.PHONY: vm-shell
vm-shell: vm-ready ## open a prompt in a virtual machine with kbnode installed
	@$(VM_ENV) go run ./test/vm/kbvm shell

.PHONY: vm-tutorial
vm-tutorial: vm-ready debs ## open a prompt in a virtual machine that has only kbnode's package, for docs/tutorial.md
	@$(VM_ENV) go run ./test/vm/kbvm tutorial

.PHONY: demo
demo: ## show the path of one job in the virtual machine: build, boot, install, run, result; in about six minutes
	@$(VM_ENV) MAKE="$(MAKE)" test/vm/demo.sh
