// Package environ gives a program that a build's variables start its environment as data. What Go's runtime and
// packages read there before main could end the program, or change it: GOMAXPROCS, GODEBUG, GOMEMLIMIT and others.
//
// A program that is linked with -E kbnode_entry begins with this package's own code, before the runtime: if its first
// argument is "bootstrap", it has no variables at all. Such a program must be static, so that no loader reads them.
package environ

import (
	"fmt"
	"os"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// Network are the variables with which Go's packages reach servers.
var Network = []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// most is more bytes than Linux gives a program's arguments and environment.
const most = 16 << 20

// Read returns the variables with which this program was started, as os.Environ would.
func Read() ([]string, error) {
	if env := os.Environ(); len(env) > 0 {
		return env, nil
	}
	text, err := limit.ReadFile("/proc/self/environ", most)
	if err != nil {
		return nil, fmt.Errorf("read the environment: %w", err)
	}
	if len(text) == 0 {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}
