package confine

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestSeccomp tests which sockets the profile allows, as libseccomp reads it, that no job may take a lease, that no
// socket lingers, and that it allows all else that Docker's does.
func TestSeccomp(t *testing.T) {
	t.Parallel()
	text, err := Seccomp()
	must.Do(t, err)
	var profile seccomp.Seccomp
	must.Do(t, json.Unmarshal([]byte(text), &profile))
	allows := func(call string, args ...uint64) bool {
		for _, s := range profile.Syscalls {
			for _, name := range s.Names {
				if name != call || s.Action != specs.ActAllow {
					continue
				}
				fits := true
				for _, a := range s.Args {
					fits = fits && a.Op == specs.OpMaskedEqual && args[a.Index]&a.Value == a.ValueTwo
				}
				if fits {
					return true
				}
			}
		}
		return false
	}
	const stream, dgram, raw, seqpacket = 1, 2, 3, 5
	for _, row := range []struct {
		what string
		args [3]uint64
		want bool
	}{
		{"unix", [3]uint64{1, stream, 0}, true},
		{"TCP", [3]uint64{2, stream | 0o2000000, 0}, true},
		{"TCP by its number", [3]uint64{10, stream, 6}, true},
		{"UDP", [3]uint64{2, dgram, 17}, true},
		{"MPTCP, which Go tries first", [3]uint64{2, stream, 262}, true},
		{"ping", [3]uint64{2, dgram, 1}, true},
		{"routes", [3]uint64{16, raw, 0}, true},
		{"udev", [3]uint64{16, raw, 15}, true},
		{"RDMA", [3]uint64{16, raw, 20}, true},
		{"audit, which is built in, and useradd demands", [3]uint64{16, raw, 9}, true},
		{"a register's upper half", [3]uint64{2 | 7<<32, stream, 6 | 1<<40}, true},

		{"key", [3]uint64{15, raw, 2}, false},
		{"packets", [3]uint64{17, raw, 0}, false},
		{"RDS", [3]uint64{21, seqpacket, 0}, false},
		{"CAN", [3]uint64{29, raw, 1}, false},
		{"TIPC", [3]uint64{30, stream, 0}, false},
		{"Bluetooth", [3]uint64{31, raw, 1}, false},
		{"crypto", [3]uint64{38, seqpacket, 0}, false},
		{"vsock, which has no name spaces", [3]uint64{40, stream, 0}, false},
		{"KCM", [3]uint64{41, dgram, 0}, false},
		{"SMC", [3]uint64{43, stream, 0}, false},
		{"XDP", [3]uint64{44, raw, 0}, false},
		{"an unknown family", [3]uint64{46, stream, 0}, false},
		{"no family", [3]uint64{0, stream, 0}, false},
		{"SCTP", [3]uint64{2, stream, 132}, false},
		{"SCTP over IPv6", [3]uint64{10, seqpacket, 132}, false},
		{"DCCP", [3]uint64{2, 6, 33}, false},
		{"DCCP by its type", [3]uint64{2, 6 | 0o2000000, 0}, false},
		{"a sequence of packets", [3]uint64{10, seqpacket, 0}, false},
		{"L2TP", [3]uint64{2, dgram, 115}, false},
		{"SMC by its protocol", [3]uint64{2, stream, 256}, false},
		{"a raw protocol", [3]uint64{2, raw, 255}, false},
		{"nftables", [3]uint64{16, raw, 12}, false},
		{"IPsec", [3]uint64{16, raw, 6}, false},
		{"generic netlink, which loads by name", [3]uint64{16, raw, 16}, false},
		{"netlink's crypto", [3]uint64{16, raw, 21}, false},
	} {
		if got := allows("socket", row.args[:]...); got != row.want {
			t.Errorf("%s: %t", row.what, got)
		}
	}
	if !allows("socketpair", 1, stream, 0) || allows("socketpair", 30, stream, 0) || allows("socketpair", 38, seqpacket, 0) || allows("socketcall", 1, 0, 0) {
		t.Error("another way to open a socket is not bounded, or unix has none")
	}
	for _, call := range []string{"fcntl", "fcntl64"} {
		const setLease, setDeleg = 1024, 1040
		for command := range uint64(2 * setLease) {
			for _, upper := range []uint64{0, 1 << 32} {
				if got := allows(call, 0, command|upper, 0); got != (command < setDeleg && command != setLease) {
					t.Errorf("%s with command %d: %t", call, command, got)
				}
			}
		}
	}
	const solSocket, soLinger = 1, 13
	for level := range uint64(2 * maxOption) {
		for option := range uint64(2 * maxOption) {
			linger := level == solSocket && option == soLinger
			if got := allows("setsockopt", 0, level, option|1<<32); got != (!linger && (level < maxOption && level != solSocket || option < maxOption && option != soLinger)) {
				t.Errorf("option %d of level %d: %t", option, level, got)
			}
		}
	}
	if !slices.ContainsFunc(profile.Syscalls, func(s *seccomp.Syscall) bool {
		return slices.Equal(s.Names, []string{"setsockopt"}) && s.Action == specs.ActErrno && s.ErrnoRet != nil && *s.ErrnoRet == 0 &&
			slices.Equal(s.Args, []specs.LinuxSeccompArg{isInt(1, solSocket), isInt(2, soLinger)})
	}) {
		t.Error("a program that asks for SO_LINGER is refused, which may end it")
	}
	names, called := map[string]bool{}, 0
	for _, s := range profile.Syscalls {
		if slices.Equal(s.Names, []string{"socketcall"}) && s.Action == specs.ActErrno && s.ErrnoRet != nil && *s.ErrnoRet == 38 && len(s.Args) == 0 {
			called++
		}
		for _, name := range s.Names {
			names[name] = true
		}
	}
	for _, s := range seccomp.DefaultProfile().Syscalls {
		for _, name := range s.Names {
			if !names[name] {
				t.Errorf("%s is not in the profile", name)
			}
		}
	}
	if called != 1 {
		t.Error("libseccomp allows socketcall where nothing refuses it")
	}
	if profile.DefaultAction != specs.ActErrno || len(profile.ArchMap) == 0 {
		t.Errorf("%s for what is not in it, %d architectures", profile.DefaultAction, len(profile.ArchMap))
	}
}
