# The virtual machine rig; included by the top Makefile, which defines BIN, BKSTUB,
# AGENT and SUDO. See test/vm/README.md.

VM_RUN      ?= $(or $(RUN),.)
VM_TIMEOUT  ?= 180m
VM_PARALLEL ?= $(shell n=$$(( $$(nproc) / 2 )); echo $$(( n > 1 ? n : 1 )))
VM_NVML     := build/libnvidia-ml.so.1

VM_ENV = AGENT=$(abspath $(AGENT)) KBNODE_BIN=$(abspath $(BIN)) BKSTUB_BIN=$(abspath $(BKSTUB)) \
	NVML_LIB=$(abspath $(VM_NVML)) KBNODE_VM_LOGS=$(abspath build/vm-logs) \
	KBNODE_DEBS=$(abspath build/debs) KBNODE_SCREENS=$(abspath build/screens)

$(VM_NVML): $(wildcard test/nvml/*) go.mod | deps-$(HOST_ARCH)
	@mkdir -p $(@D)
	test/nvml/build.sh $@

# What tests and people need: packages on this machine, and files for the virtual one.
.PHONY: vm-ready
vm-ready: $(AGENT) $(BIN) $(BKSTUB) $(VM_NVML) | vm-deps

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

# The long scenarios, which test-vm skips. test/vm/groups lists them in groups.
VM_GROUPS  := $(shell sed -nE 's/^[0-9]+ //p' test/vm/groups)
VM_ATTACKS := ^($(shell sed -nE 's/^([0-9]+|-) //p' test/vm/groups | grep -oE 'Test[A-Za-z0-9]+' | sort -u | paste -sd'|'))$$
# The group whose turn it is at this commit.
VM_TURN = $(shell set -- $(foreach g,$(VM_GROUPS),'$(g)'); shift $$(( $$(git rev-list --count HEAD) % $$# )); printf %s "$$1")
VM_PACKAGED := TestCloudInit TestPackage TestTutorial # they install the .deb

.PHONY: test-vm
test-vm: vm-ready ## run the scenarios in the virtual machine; RUN=regex selects some
	$(if $(findstring TestAnsible,$(VM_RUN)),$(call need,ansible-playbook,ansible-core))
	$(VM_ENV) test/vm/run.sh -tags vm -count=1 -v -timeout $(VM_TIMEOUT) -parallel $(VM_PARALLEL) -run '$(VM_RUN)' $(if $(RUN),,-skip '$(VM_ATTACKS)') ./test/vm

.PHONY: test-attacks
test-attacks: debs ansible-lint ## run the long scenarios: hostile jobs, the network, the self-test, the daemon, doctor, pipelines of every shape
	$(MAKE) test-vm RUN='$(VM_ATTACKS)'

.PHONY: test-turn
test-turn: ## run the group of long scenarios that is next at this commit; .ci/run adds it to make test
	@echo "long scenarios of this turn: $(VM_TURN)"
	$(if $(strip $(foreach t,$(VM_PACKAGED),$(findstring $t,$(VM_TURN)))),$(MAKE) debs)
	$(MAKE) test-vm RUN='$(VM_TURN)'

.PHONY: test-all
test-all: test test-attacks test-nvcc ## run make test and every long scenario, in about six hours

.PHONY: test-packages
test-packages: debs ## install, upgrade and remove the .deb beside jobs in the virtual machine, and run the documents' commands
	$(MAKE) test-vm RUN='^(TestPackage|TestTutorial)$$'

# Needs Debian's python3, even if PATH has another one first.
.PHONY: screenshots
screenshots: ## draw real terminal sessions in the virtual machine to docs/screens
	@/usr/bin/python3 -c 'import pyte' 2>/dev/null || { $(SUDO) apt-get update -qq; DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends python3-pyte >/dev/null; }
	$(MAKE) test-vm RUN='^TestScreens$$'
	/usr/bin/python3 test/vm/screens.py build/screens docs/screens

.PHONY: ansible-lint
ansible-lint: ## lint the Ansible role and its example with the strictest profile
	$(call need,ansible-lint,ansible-lint)
	cd packaging/ansible && ansible-lint --offline --profile production site.yml roles/kbnode

.PHONY: bench-vm
bench-vm: vm-ready ## measure the cost of hooks, the guard and the idle daemon in the virtual machine
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
demo: vm-ready ## build, boot, install, run a job, show status and result
	@$(VM_ENV) go run ./test/vm/kbvm demo
