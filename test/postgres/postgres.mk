# Tests the results database against a real PostgreSQL; included by the top Makefile,
# which defines SUDO.

# Debian's package creates and starts its own server, which nothing here needs: the
# tests start theirs. A machine that has PostgreSQL is not changed.
.PHONY: db-deps
db-deps:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { \
		echo installing postgresql; \
		$(SUDO) apt-get update -qq; \
		[ -e /etc/postgresql-common/createcluster.conf ] || { \
			$(SUDO) mkdir -p /etc/postgresql-common; \
			echo 'create_main_cluster = false' | $(SUDO) tee /etc/postgresql-common/createcluster.conf >/dev/null; }; \
		DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends postgresql >/dev/null; }

DB_PACKAGES = internal/operate/results internal/operate/e2e
# The tests of files with this tag; make unit runs the others.
DB_TESTS = $(shell grep -lE '^//go:build postgres$$' $(DB_PACKAGES:%=%/*_test.go) | xargs sed -nE 's/^func (Test\w+)\(t \*testing\.T\).*/\1/p' | paste -sd'|')

.PHONY: test-db
test-db: $(GOTESTSUM) | db-deps ## test the results database with a real PostgreSQL
	test/retest.sh db '$(DB_PACKAGES:%=./%)' -tags postgres -count=1 -timeout 10m -run '^($(DB_TESTS))$$'
