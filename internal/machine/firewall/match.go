package firewall

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// chain is a chain of the table, in the terms of the nft program.
type chain struct {
	name  string              // for a base chain, its hook's
	hook  *nftables.ChainHook // nil: other chains jump to it
	rules []rule
}

func (c chain) nft() *nftables.Chain {
	n := &nftables.Chain{Table: &table, Name: c.name}
	if c.hook != nil {
		policy := nftables.ChainPolicyAccept
		n.Type, n.Hooknum, n.Priority, n.Policy = nftables.ChainTypeFilter, c.hook, nftables.ChainPriorityFilter, &policy
	}
	return n
}

// rule is a list of matches with a verdict at its end.
type rule []part

// part is a piece of a rule, as the kernel reads it and as nft writes it.
type part struct {
	nft   string
	exprs []expr.Any
}

func (r rule) exprs() []expr.Any {
	var all []expr.Any
	for _, p := range r {
		all = append(all, p.exprs...)
	}
	return all
}

func (r rule) text() string {
	words := make([]string, len(r))
	for i, p := range r {
		words[i] = p.nft
	}
	return strings.Join(words, " ")
}

// ifname returns the name of an interface as the kernel stores it.
func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func meta(key expr.MetaKey, register uint32) *expr.Meta {
	return &expr.Meta{Key: key, Register: register}
}

func equals(data []byte) *expr.Cmp {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}
}

// interfaceIs matches a name; a * at its end matches anything.
func interfaceIs(word, name string, key expr.MetaKey) part {
	data := ifname(name)
	if before, ok := strings.CutSuffix(name, "*"); ok {
		data = []byte(before)
	}
	return part{word + ` "` + name + `"`, []expr.Any{meta(key, 1), equals(data)}}
}

func iifname(name string) part { return interfaceIs("iifname", name, expr.MetaKeyIIFNAME) }
func oifname(name string) part { return interfaceIs("oifname", name, expr.MetaKeyOIFNAME) }

func iifnameTo(register uint32) expr.Any { return meta(expr.MetaKeyIIFNAME, register) }
func oifnameTo(register uint32) expr.Any { return meta(expr.MetaKeyOIFNAME, register) }

// inSet looks up the values that loads puts into the registers, starting with register 1.
func inSet(word, set string, loads ...expr.Any) part {
	return part{word + " @" + set, append(loads, &expr.Lookup{SourceRegister: 1, SetName: set})}
}

func nfproto(proto byte) []expr.Any {
	return []expr.Any{meta(expr.MetaKeyNFPROTO, 1), equals([]byte{proto})}
}

func nfproto6() part { return part{"meta nfproto ipv6", nfproto(unix.NFPROTO_IPV6)} }

// dns matches packets to port 53 by "udp" or "tcp".
func dns(proto string) part { return port(proto, 53) }

// port matches packets to a port by "udp" or "tcp".
func port(proto string, number uint16) part {
	return part{fmt.Sprintf("%s dport %d", proto, number), append(dport(proto), equals(binaryutil.BigEndian.PutUint16(number)))}
}

// dport loads the destination port.
func dport(proto string) []expr.Any {
	number := map[string]byte{"udp": unix.IPPROTO_UDP, "tcp": unix.IPPROTO_TCP}[proto]
	return []expr.Any{
		meta(expr.MetaKeyL4PROTO, 1), equals([]byte{number}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// daddr matches the destination address, which is at byte 16 of an IPv4 header.
func daddr(p netip.Prefix) part {
	n := (p.Bits() + 7) / 8
	exprs := append(nfproto(unix.NFPROTO_IPV4), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: uint32(n)})
	if rest := p.Bits() % 8; rest != 0 {
		mask := make([]byte, n)
		for i := range mask {
			mask[i] = 0xff
		}
		mask[n-1] <<= 8 - rest
		exprs = append(exprs, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(n), Mask: mask, Xor: make([]byte, n)})
	}
	name := p.String()
	if p.IsSingleIP() {
		name = p.Addr().String()
	}
	return part{"ip daddr " + name, append(exprs, equals(p.Masked().Addr().AsSlice()[:n]))}
}

// anyOf matches if a word of conntrack's has any of these bits.
func anyOf(word string, key expr.CtKey, bits uint32) part {
	return part{word, []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}}
}

func ctState(states ...string) part {
	known := map[string]uint32{
		"invalid": expr.CtStateBitINVALID, "established": expr.CtStateBitESTABLISHED,
		"related": expr.CtStateBitRELATED, "new": expr.CtStateBitNEW,
	}
	bits := uint32(0)
	for _, s := range states {
		bits |= known[s]
	}
	return anyOf("ct state "+strings.Join(states, ","), expr.CtKeySTATE, bits)
}

// ctStatusDNAT matches a connection whose destination the node has changed.
func ctStatusDNAT() part {
	const dstNAT = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	return anyOf("ct status dnat", expr.CtKeySTATUS, dstNAT)
}

func verdict(word string, kind expr.VerdictKind, to string) part {
	return part{word, []expr.Any{&expr.Verdict{Kind: kind, Chain: to}}}
}

func accept() part           { return verdict("accept", expr.VerdictAccept, "") }
func drop() part             { return verdict("drop", expr.VerdictDrop, "") }
func jump(chain string) part { return verdict("jump "+chain, expr.VerdictJump, chain) }

// reject drops a packet and tells its sender, in IPv4 and IPv6.
func reject() part {
	const prohibited = 3 // NFT_REJECT_ICMPX_ADMIN_PROHIBITED
	return part{"reject with icmpx admin-prohibited", []expr.Any{
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: prohibited},
	}}
}

// reset is reject for TCP: the kernel limits the rate of ICMP messages, but not of
// resets.
func reset() part {
	return part{"meta l4proto tcp reject with tcp reset", []expr.Any{
		meta(expr.MetaKeyL4PROTO, 1), equals([]byte{unix.IPPROTO_TCP}),
		&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
	}}
}
