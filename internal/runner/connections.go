package runner

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// connectionLimit is how long to wait for connections that outlive their processes, and connectionPause the time between
// two looks. Within one machine, a connection whose both ends are closed is gone at once.
const (
	connectionLimit = 2 * time.Second
	connectionPause = 5 * time.Millisecond
)

// awaitConnections returns an error if the kernel goes on with a TCP connection within this container whose process has
// ended. A process can make it do so for minutes, as by letting one end drop what the other sends (IP_MINTTL), and the next
// program reads in /proc/net/tcp which of thousands of addresses and ports it chose.
func awaitConnections() error {
	for deadline := time.Now().Add(connectionLimit); ; time.Sleep(connectionPause) {
		if !hasConnections() || !leftConnection("tcp") && !leftConnection("tcp6") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("a program left a TCP connection that is still there %s after its end, which those after it may read; a submission must not keep one open", connectionLimit)
		}
	}
}

// hasConnections reports whether there are TCP sockets at all: with many processors, the kernel takes milliseconds to list
// none.
func hasConnections() bool {
	text, _ := os.ReadFile("/proc/net/protocols") // without it, there is no list
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && (f[0] == "TCP" || f[0] == "TCPv6") && f[2] != "0" {
			return true
		}
	}
	return false
}

// The states in which a connection ends without its process: FIN_WAIT1, FIN_WAIT2, LAST_ACK and CLOSING (net/tcp_states.h).
// In others, one without a process waits to be accepted.
var endingStates = []string{"04", "05", "09", "0B"}

// leftConnection reports whether a list, tcp or tcp6, has a connection between addresses of this machine that belongs to no
// process. What goes outside is bounded by the network.
func leftConnection(list string) bool {
	f, err := os.Open("/proc/net/" + list)
	if err != nil {
		return false // such as without IPv6
	}
	defer f.Close() //nolint:errcheck // opened for reading
	for lines := bufio.NewScanner(f); lines.Scan(); {
		f := strings.Fields(lines.Text()) // see proc_pid_net(5)
		if len(f) < 10 || f[9] != "0" || !slices.Contains(endingStates, f[3]) {
			continue
		}
		from, _, _ := strings.Cut(f[1], ":")
		to, _, _ := strings.Cut(f[2], ":")
		if from == to || isLoopback(from) || isLoopback(to) {
			return true
		}
	}
	return false
}

// isLoopback reports whether an address is one of 127.0.0.0/8, or ::1, in the form of these lists: in words of the processor.
func isLoopback(address string) bool {
	v4, mapped := strings.CutPrefix(address, "0000000000000000FFFF0000")
	return (mapped || len(address) == 8) && strings.HasSuffix(v4, "7F") || address == "00000000000000000000000001000000"
}
