package firewall

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// bridges is the prefix of the names of all slots' bridges. The rules match only the
// prefix, so they also hold for a slot that they do not know yet.
var bridges = strings.TrimSuffix(plan.NetworkName(0), "0")

// metadata are the addresses that tell a cloud machine its identity and rights: instance
// metadata, Azure's wire server, Alibaba's metadata. On physical servers the link-local
// ones lead to the management controller.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("168.63.129.16/32"),
	netip.MustParsePrefix("100.100.100.200/32"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::254/128"),
	netip.MustParsePrefix("fd20:ce::254/128"),
	netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"),
}

// private are the addresses that lead to the node, its neighborhood or a tunnel into it,
// not to the Internet. In IPv6 these are everything outside 2000::/3, and 6to4 and Teredo,
// which carry IPv4 addresses.
var private = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3",
	"::/3", "4000::/2", "8000::/1", "2001::/32", "2002::/16")

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
	var host []rule
	for _, p := range metadata {
		if p.Addr().Is4() {
			fromJob = append(fromJob, rule{daddr(p), jump("refuse")})
		}
		host = append(host, rule{daddr(p), jump("metadata")})
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
		{name: "output", hook: nftables.ChainHookOutput, rules: append([]rule{
			{toJob, ctState("new", "invalid"), drop()},
			{oifname("lo"), inSet("meta skuid", slotUsers, skuidTo(1)), jump("to_self")},
			{inSet("meta skuid", internetUsers, skuidTo(1)), jump("internet")},
		}, host...)},

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
		// From a job, or its command on the host, to the outside, for slots with only the
		// Internet.
		{name: "internet", rules: n.internet()},
		// From the node to the cloud; jobs' commands on the host must not get there.
		{name: "metadata", rules: append(slices.Clone(names),
			rule{inSet("meta skuid", slotUsers, skuidTo(1)), jump("refuse")},
		)},
		// From a job's command on the host to the node itself: many services of a node,
		// such as DCGM, trust every process that reaches its loopback interface.
		{name: "to_self", rules: slices.Concat([]rule{{ctState("established"), accept()}}, names, []rule{
			{portIn("udp", localPorts), accept()},
			{portIn("tcp", localPorts), accept()},
			{jump("refuse")},
		})},
		// Refuse, and tell the sender.
		{name: "refuse", rules: []rule{{reset()}, {reject()}}},
	}
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
	slotUsers       = "slot_users"       // user IDs
	localPorts      = "local_ports"      // ports of the node, for these users
	internetBridges = "internet_bridges" // bridges of slots with only the Internet
	internetUsers   = "internet_users"   // users of the same slots
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
	users := member{set: &nftables.Set{
		Table: &table, ID: 2, Name: slotUsers, KeyType: nftables.TypeUID, KeyByteOrder: binaryutil.NativeEndian,
	}}
	local := member{set: &nftables.Set{
		Table: &table, ID: 3, Name: localPorts, KeyType: nftables.TypeInetService,
	}}
	publicBridges := member{set: &nftables.Set{
		Table: &table, ID: 4, Name: internetBridges, KeyType: nftables.TypeIFName,
	}}
	publicUsers := member{set: &nftables.Set{
		Table: &table, ID: 5, Name: internetUsers, KeyType: nftables.TypeUID, KeyByteOrder: binaryutil.NativeEndian,
	}}
	for _, p := range n.Ports {
		local.elements = append(local.elements, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(p)})
	}
	for _, s := range n.Slots {
		name, user := ifname(s.Bridge), nftables.SetElement{Key: binaryutil.NativeEndian.PutUint32(s.UID)}
		same.elements = append(same.elements, nftables.SetElement{Key: slices.Concat(name, name)})
		users.elements = append(users.elements, user)
		if s.Internet {
			publicBridges.elements = append(publicBridges.elements, nftables.SetElement{Key: name})
			publicUsers.elements = append(publicUsers.elements, user)
		}
	}
	all := []member{same, users, local, publicBridges, publicUsers}
	for _, m := range all {
		slices.SortFunc(m.elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	}
	return all
}
