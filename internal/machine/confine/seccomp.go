package confine

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Opening a socket of a family or protocol that the kernel does not have makes it load the module, in all
// namespaces and without a capability (net/socket.c, net/ipv4/af_inet.c, net/netlink/af_netlink.c). These are all that a
// job may open: what programs, NCCL and RDMA use. Not among them are generic netlink, which loads a module by any name
// of a family, and netlink of nftables, IPsec and the crypto API. Nor is vsock, which Docker refuses, too: before
// Linux 7 it is one network of all containers and the node, which no network of a slot and no firewall separates.
var (
	// protocols are those of each family but unix.
	protocols = map[uint64][]uint64{
		unix.AF_INET:    internet,
		unix.AF_INET6:   internet,
		unix.AF_NETLINK: {unix.NETLINK_ROUTE, unix.NETLINK_USERSOCK, unix.NETLINK_SOCK_DIAG, unix.NETLINK_AUDIT, unix.NETLINK_KOBJECT_UEVENT, unix.NETLINK_RDMA},
	}
	// types are those of the Internet's sockets: DCCP's is loaded without its protocol.
	types    = []uint64{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW}
	internet = []uint64{unix.IPPROTO_IP, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6, unix.IPPROTO_MPTCP}
)

// fcntls are the commands of fcntl that a job may use: all but F_SETLEASE and F_SETDELEG. With these the owner of a file, as
// root in a container is of kbnode and of the driver's files, also where they are mounted read-only, has anyone
// who opens one wait for up to fs.lease-break-time, 45 s, each time: other slots and the node. No rule says "not equal" of the lower
// half of an argument, which is all that the kernel reads, so these are ranges. Source: linux/fcntl.h.
var fcntls = []struct{ mask, value uint64 }{
	{1<<32 - unix.F_SETLEASE, 0}, // below
	{1<<32 - 1, unix.F_GETLEASE}, {1<<32 - 1, unix.F_NOTIFY}, {1<<32 - 1, unix.F_DUPFD_QUERY},
	{1<<32 - 4, unix.F_SETLEASE + 4}, {1<<32 - 8, unix.F_SETLEASE + 8}, // up to F_GETDELEG
}

// Who closes a TCP connection's last descriptor waits for as long as SO_LINGER says. That may be the kernel's own thread, which
// collects the unix sockets of all slots and the node, or who receives the descriptor: so a job's SO_LINGER does nothing.
// maxOption is above all levels and options of setsockopt. Source: linux/socket.h, asm-generic/socket.h.
const maxOption = 512

// Seccomp returns the seccomp profile of jobs' containers, in JSON for Docker 20.10 or later: Docker's own of the version
// that kbnode is built with, in which sockets, their options and fcntl are bounded.
var Seccomp = sync.OnceValues(func() (string, error) {
	profile := seccomp.DefaultProfile()
	bounded := []string{"socket", "socketpair", "socketcall", "setsockopt", "fcntl", "fcntl64"}
	for _, s := range profile.Syscalls {
		s.Names = slices.DeleteFunc(s.Names, func(name string) bool { return slices.Contains(bounded, name) })
	}
	profile.Syscalls = slices.DeleteFunc(profile.Syscalls, func(s *seccomp.Syscall) bool { return len(s.Names) == 0 })
	allow := func(name string, args ...specs.LinuxSeccompArg) {
		profile.Syscalls = append(profile.Syscalls, &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}})
	}
	// The arguments of socketcall, which programs of 32 bits use on amd64, are in memory, where no filter sees them. It needs
	// a rule, or libseccomp makes one of socket's that allows all. (libseccomp 2.5.4; in any order.)
	enosys := uint(unix.ENOSYS)
	profile.Syscalls = append(profile.Syscalls, &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: []string{"socketcall"}, Action: specs.ActErrno, ErrnoRet: &enosys}})
	allow("socketpair", isInt(0, unix.AF_UNIX))
	allow("socket", isInt(0, unix.AF_UNIX))
	for _, protocol := range protocols[unix.AF_NETLINK] {
		allow("socket", isInt(0, unix.AF_NETLINK), isInt(2, protocol))
	}
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, protocol := range protocols[family] {
			for _, kind := range types {
				allow("socket", isInt(0, family), masked(1, typeMask, kind), isInt(2, protocol))
			}
		}
	}
	for bit := uint64(1); bit < maxOption; bit *= 2 {
		allow("setsockopt", differs(1, unix.SOL_SOCKET, bit))
		allow("setsockopt", differs(2, unix.SO_LINGER, bit))
	}
	done := uint(0)
	profile.Syscalls = append(profile.Syscalls, &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{
		Names: []string{"setsockopt"}, Action: specs.ActErrno, ErrnoRet: &done, Args: []specs.LinuxSeccompArg{isInt(1, unix.SOL_SOCKET), isInt(2, unix.SO_LINGER)},
	}})
	for _, name := range []string{"fcntl", "fcntl64"} {
		for _, c := range fcntls {
			allow(name, masked(1, c.mask, c.value))
		}
	}
	text, err := json.Marshal(profile)
	if err != nil {
		return "", fmt.Errorf("write the seccomp profile: %w", err)
	}
	return string(text), nil
})

// typeMask is what of a socket's type is not SOCK_CLOEXEC or SOCK_NONBLOCK. Source: SOCK_TYPE_MASK in linux/net.h.
const typeMask = 0xf

// isInt compares an argument that is an int: the kernel does not look at its upper half.
func isInt(index uint, value uint64) specs.LinuxSeccompArg { return masked(index, 1<<32-1, value) }

// differs compares an argument that is an int: from bit on, it is value but for that bit.
func differs(index uint, value, bit uint64) specs.LinuxSeccompArg {
	mask := 1<<32 - bit
	return masked(index, mask, (value^bit)&mask)
}

func masked(index uint, mask, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}
}
