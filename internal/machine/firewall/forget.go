package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Messages and attributes of connection tracking. Source: linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet       = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	ctaOriginal = 1
	ctaReply    = 2
	ctaID       = 12
	ctaZone     = 18
	ctaTupleIP  = 1
	ctaIPv4From = 1
	ctaIPv4To   = 2
)

// answerTime is how long the kernel may take for one message.
const answerTime = 10 * time.Second

// genericHeader is an nfgenmsg: IPv4, version 0, no resource.
var genericHeader = []byte{unix.AF_INET, 0, 0, 0}

// Forget deletes the IPv4 connections of any address in these networks. A connection that outlives its container leads
// packets from outside, which are established, to the next one that has its address. It needs little memory, however
// many connections there are.
func Forget(networks []netip.Prefix) error {
	err := errAgain
	for range forgetRounds {
		if errors.Is(err, errAgain) {
			err = forget(networks)
		}
	}
	if err != nil {
		return fmt.Errorf("forget the connections of earlier containers: %w; the kernel needs nf_conntrack_netlink; run modprobe nf_conntrack_netlink", err)
	}
	return nil
}

// forgetRounds is how often the table is read if it changes meanwhile in a way that may hide a connection.
const forgetRounds = 5

var errAgain = errors.New("the table of connections changes all the time")

func forget(networks []netip.Prefix) error {
	table, err := ctSocket()
	if err != nil {
		return err
	}
	defer unix.Close(table) //nolint:errcheck // nothing was written to a file
	changes, err := ctSocket()
	if err != nil {
		return err
	}
	defer unix.Close(changes) //nolint:errcheck // likewise
	if err := ctSend(table, ctGet, netlink.Request|netlink.Dump, genericHeader); err != nil {
		return err
	}
	again := false
	connections, answer := make([]byte, 64<<10), make([]byte, 4<<10)
	for done := false; !done; {
		done, err = ctReceive(table, connections, func(header netlink.Header, data []byte) error {
			again = again || header.Flags&netlink.DumpInterrupted != 0
			key, err := ofNetwork(data, networks)
			if key == nil || err != nil {
				return err
			}
			if err := ctSend(changes, ctDelete, netlink.Request|netlink.Acknowledge, append(slices.Clone(genericHeader), key...)); err != nil {
				return err
			}
			_, err = ctReceive(changes, answer, func(netlink.Header, []byte) error { return nil })
			if errors.Is(err, unix.ENOENT) { // it has just ended
				err = nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if again {
		return errAgain
	}
	return nil
}

// ofNetwork returns the attributes that name a connection, nil for one of no address in these networks.
func ofNetwork(data []byte, networks []netip.Prefix) (key []byte, err error) {
	if len(data) < len(genericHeader) {
		return nil, unix.EBADMSG
	}
	all, err := netlink.UnmarshalAttributes(data[len(genericHeader):])
	if err != nil {
		return nil, err
	}
	var names []netlink.Attribute
	match := false
	for _, a := range all {
		kind := a.Type &^ (netlink.Nested | netlink.NetByteOrder)
		if kind == ctaOriginal || kind == ctaReply {
			match = match || tupleIn(a.Data, networks)
		}
		if kind == ctaOriginal || kind == ctaID || kind == ctaZone {
			names = append(names, a)
		}
	}
	if !match {
		return nil, nil
	}
	return netlink.MarshalAttributes(names)
}

// tupleIn reports whether an address of one direction of a connection is in any of these networks.
func tupleIn(tuple []byte, networks []netip.Prefix) bool {
	parts, _ := netlink.UnmarshalAttributes(tuple)
	for _, part := range parts {
		if part.Type&^netlink.Nested != ctaTupleIP {
			continue
		}
		ends, _ := netlink.UnmarshalAttributes(part.Data)
		for _, end := range ends {
			a, ok := netip.AddrFromSlice(end.Data)
			if ok && (end.Type == ctaIPv4From || end.Type == ctaIPv4To) && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) }) {
				return true
			}
		}
	}
	return false
}

func ctSocket() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, err
	}
	late := unix.NsecToTimeval(int64(answerTime))
	return fd, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &late)
}

func ctSend(fd int, kind netlink.HeaderType, flags netlink.HeaderFlags, data []byte) error {
	text, err := netlink.Message{Header: netlink.Header{Length: uint32(unix.NLMSG_HDRLEN + len(data)), Type: kind, Flags: flags}, Data: data}.MarshalBinary()
	if err != nil {
		return err
	}
	return unix.Sendto(fd, text, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// ctReceive reads messages into a buffer and gives those with data to each. done reports the end of the answer.
func ctReceive(fd int, buffer []byte, each func(netlink.Header, []byte) error) (done bool, err error) {
	n, _, err := unix.Recvfrom(fd, buffer, 0)
	for rest := buffer[:max(n, 0)]; err == nil && len(rest) >= unix.NLMSG_HDRLEN; {
		length := int(binary.NativeEndian.Uint32(rest))
		if length < unix.NLMSG_HDRLEN || length > len(rest) {
			return true, unix.EBADMSG
		}
		header := netlink.Header{Type: netlink.HeaderType(binary.NativeEndian.Uint16(rest[4:])), Flags: netlink.HeaderFlags(binary.NativeEndian.Uint16(rest[6:]))}
		data := rest[unix.NLMSG_HDRLEN:length]
		rest = rest[min((length+3)&^3, len(rest)):]
		switch {
		case header.Type == netlink.Done:
			return true, nil
		case header.Type == netlink.Error && len(data) >= 4:
			if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
				return true, unix.Errno(-code)
			}
			return true, nil
		default:
			err = each(header, data)
		}
	}
	return err != nil, err
}
