package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestUpgradeUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flags upgradeFlags
		says  string
	}{
		{upgradeFlags{}, "sudo install -m 755 kbnode /usr/local/bin/kbnode"},
		{upgradeFlags{version: "3.100.0", binary: "x"}, "leave out --agent-version"},
		{upgradeFlags{version: "latest"}, "write one such as 3.76.2"},
		{upgradeFlags{version: "3.100.0", timeout: 1}, "too short"},
	} {
		if tt.flags.timeout == 0 {
			tt.flags.timeout = time.Minute
		}
		err := tt.flags.check()
		var exit *exitError
		if !errors.As(err, &exit) || exit.code != exitUsage || !strings.Contains(strings.ReplaceAll(err.Error(), unbroken, " "), tt.says) {
			t.Errorf("%+v: %v, want %q", tt.flags, err, tt.says)
		}
	}
	if diff := cmp.Diff(nil, upgradeFlags{version: "3.100.0", timeout: time.Minute}.check()); diff != "" {
		t.Error(diff)
	}
}
