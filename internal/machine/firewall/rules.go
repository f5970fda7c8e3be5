package firewall

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// bridges is the prefix of the names of all slots' bridges. The rules match only the
// prefix, so they also hold for a slot that they do not know yet.
var bridges = strings.TrimSuffix(plan.NetworkName(0), "0")

// metadata are the addresses that tell a cloud machine its identity and rights: instance
// metadata, Azure's wire server, Alibaba's metadata. On physical servers the link-local
// ones lead to the management controller. Those in IPv6 are missing: no packet of a job's
// passes in IPv6.
var metadata = prefixes("169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32")

// private are the addresses that lead to the node or its neighborhood, not to the Internet.
var private = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3")

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

// rules returns the table's chains. DNS passes to any address: some clouds serve it at the
// metadata address, and the engine asks the node's resolver from within a container's
// network. Anything else that a job may not reach is refused at once: many programs look
// for metadata when they start and would wait.
func (n Node) rules() []chain {
	job := iifname(bridges + "*")
	toJob := oifname(bridges + "*")
	names := []rule{
		{dns("udp"), accept()},
		{dns("tcp"), accept()},
	}
	fromJob := slices.Concat([]rule{
		{nfproto6(), drop()},
		{inSet("iifname", internetBridges, iifnameTo(1)), jump("internet")},
	}, names, []rule{
		{ctStatusDNAT(), jump("refuse")}, // what the node publishes of others' containers
	})
	for _, p := range metadata {
		fromJob = append(fromJob, rule{daddr(p), jump("refuse")})
	}
	return []chain{
		{name: "input", hook: nftables.ChainHookInput, rules: []rule{
			{job, jump("to_host")},
		}},
		{name: "forward", hook: nftables.ChainHookForward, rules: []rule{
			{job, toJob, jump("between")},
			{toJob, jump("to_job")},
			{job, jump("from_job")},
		}},
		{name: "output", hook: nftables.ChainHookOutput, rules: []rule{
			{toJob, ctState("new", "invalid"), drop()},
		}},

		// From a job to the node itself.
		{name: "to_host", rules: slices.Concat([]rule{{nfproto6(), drop()}}, names, []rule{{jump("refuse")}})},
		// Between two jobs. With br_netfilter, frames within one bridge pass here too.
		{name: "between", rules: []rule{
			{inSet("iifname . oifname", sameSlot, iifnameTo(1), oifnameTo(2)), accept()},
			{jump("refuse")},
		}},
		// From outside the node, or from another container, to a job.
		{name: "to_job", rules: []rule{
			{ctState("established", "related"), accept()},
			{drop()},
		}},
		// From a job to the outside.
		{name: "from_job", rules: fromJob},
		// From a job to the outside, for slots with only the Internet.
		{name: "internet", rules: n.internet()},
		// Refuse, and tell the sender.
		{name: "refuse", rules: []rule{{reset()}, {reject()}}},
	}
}

// text returns the table as nft would print it, without the elements of the sets.
func (n Node) text() string {
	var b strings.Builder
	b.WriteString("table inet " + Name + " {\n")
	for _, c := range n.rules() {
		b.WriteString("\tchain " + c.name + " {\n")
		if c.hook != nil {
			b.WriteString("\t\ttype filter hook " + c.name + " priority filter; policy accept;\n")
		}
		for _, r := range c.rules {
			b.WriteString("\t\t" + r.text() + "\n")
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// internet accepts DNS to the node's name servers, what the operator lists, and public
// addresses. Metadata is refused whatever is listed.
func (n Node) internet() []rule {
	var list []rule
	for _, a := range n.Resolvers {
		to := daddr(netip.PrefixFrom(a, a.BitLen()))
		list = append(list, rule{to, dns("udp"), accept()}, rule{to, dns("tcp"), accept()})
	}
	list = append(list, rule{ctStatusDNAT(), jump("refuse")})
	for _, p := range metadata {
		list = append(list, rule{daddr(p), jump("refuse")})
	}
	for _, d := range n.Allowed {
		if d.Port == 0 {
			list = append(list, rule{daddr(d.Prefix), accept()})
			continue
		}
		list = append(list, rule{daddr(d.Prefix), port("udp", d.Port), accept()}, rule{daddr(d.Prefix), port("tcp", d.Port), accept()})
	}
	for _, p := range private {
		list = append(list, rule{daddr(p), jump("refuse")})
	}
	return append(list, rule{accept()})
}

// The table's sets, whose elements depend on the slots.
const (
	sameSlot        = "same_slot"        // each bridge, paired with itself
	internetBridges = "internet_bridges" // bridges of slots with only the Internet
)

// member is a set and its elements, by key.
type member struct {
	set      *nftables.Set
	elements []nftables.SetElement
}

func (n Node) members() []member {
	same := member{set: &nftables.Set{
		Table: &table, ID: 1, Name: sameSlot, Concatenation: true, // the library's own IDs are not goroutine-safe
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIFName),
	}}
	public := member{set: &nftables.Set{
		Table: &table, ID: 2, Name: internetBridges, KeyType: nftables.TypeIFName,
	}}
	for _, s := range n.Slots {
		name := ifname(s.Bridge)
		same.elements = append(same.elements, nftables.SetElement{Key: slices.Concat(name, name)})
		if s.Internet {
			public.elements = append(public.elements, nftables.SetElement{Key: name})
		}
	}
	all := []member{same, public}
	for _, m := range all {
		slices.SortFunc(m.elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	}
	return all
}
