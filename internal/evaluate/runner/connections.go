package runner

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// connectionLimit is how long to wait for sockets that outlive their processes, and connectionPause the time between two
// looks. Within one machine, a connection whose both ends are closed is gone at once. Sockets that unix sockets have, which
// only have each other, are collected a moment later, by a thread of the kernel.
const (
	connectionLimit = 2 * time.Second
	connectionPause = 5 * time.Millisecond
)

// sockets counts those of a container.
type sockets struct {
	owned  int // that have an owner: those of unix, and of the Internet's within this machine
	ending int // TCP connections within this machine with which the kernel goes on by itself
}

// await returns an error if there are more sockets than these, of before the program whose processes have ended. A process can make the
// kernel go on with a connection for minutes, as by letting one end drop what the other sends (IP_MINTTL), and the next
// program reads in /proc/net which of thousands of addresses, ports and names it chose.
func (s sockets) await() error {
	for deadline := time.Now().Add(connectionLimit); ; time.Sleep(connectionPause) {
		now := countSockets()
		switch {
		case now.owned <= s.owned && now.ending == 0:
			return nil
		case time.Now().Before(deadline):
		case now.ending > 0:
			return fmt.Errorf("a program left a TCP connection that is still there %s after its end, which those after it may read; a submission must not keep one open", connectionLimit)
		default:
			return fmt.Errorf("a program left sockets that are still there %s after its end, which those after it may read; a submission must not send sockets to itself", connectionLimit)
		}
	}
}

// socketsBefore counts what await may find after a program. In a network, others may have sockets, too, as in a pod or on
// the host, and what a program leaves outside is not bounded anyway.
func socketsBefore() sockets {
	s := countSockets()
	if routes, _ := os.ReadFile("/proc/net/route"); bytes.Count(routes, []byte("\n")) > 1 { // below its heads
		s.owned = math.MaxInt
	}
	return s
}

// socketLists are the lists in /proc/net of the sockets of a protocol.
var socketLists = map[string]string{
	"TCP": "tcp", "TCPv6": "tcp6", "UDP": "udp", "UDPv6": "udp6", "PING": "icmp", "PINGv6": "icmp6", "RAW": "raw", "RAWv6": "raw6",
}

// countSockets reads only lists with a socket: with many processors, the kernel takes milliseconds to list none.
func countSockets() (s sockets) {
	text, _ := os.ReadFile("/proc/net/protocols") // without it, there is no list
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		n, _ := strconv.Atoi(f[2]) // the first line has words
		switch list := socketLists[f[0]]; {
		case f[0] == "UNIX" || f[0] == "UNIX-STREAM":
			s.owned += n
		case list != "" && n > 0:
			s.list(list)
		}
	}
	return s
}

// The states in which a connection ends without its process: FIN_WAIT1, FIN_WAIT2, LAST_ACK and CLOSING (net/tcp_states.h).
// In others, one without a process waits to be accepted.
var endingStates = []string{"04", "05", "09", "0B"}

// list counts what a list has within this machine. What goes outside is bounded by the network.
func (s *sockets) list(name string) {
	f, err := os.Open("/proc/net/" + name)
	if err != nil {
		return // such as without IPv6
	}
	defer f.Close() //nolint:errcheck // opened for reading
	for lines := bufio.NewScanner(f); lines.Scan(); {
		f := strings.Fields(lines.Text()) // see proc_pid_net(5)
		if len(f) < 10 || f[0] == "sl" {
			continue
		}
		from, _, _ := strings.Cut(f[1], ":")
		to, _, _ := strings.Cut(f[2], ":")
		switch inside := from == to || isLoopback(from) || isLoopback(to); {
		case inside && f[9] != "0":
			s.owned++
		case inside && slices.Contains(endingStates, f[3]):
			s.ending++
		}
	}
}

// isLoopback reports whether an address is one of 127.0.0.0/8, or ::1, in the form of these lists: in words of the processor.
func isLoopback(address string) bool {
	v4, mapped := strings.CutPrefix(address, "0000000000000000FFFF0000")
	return (mapped || len(address) == 8) && strings.HasSuffix(v4, "7F") || address == "00000000000000000000000001000000"
}
