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

// bridges is what the names of all slots' bridges begin with. The rules ask for
// no more than that, so they hold for a slot that they have not heard of yet.
var bridges = strings.TrimSuffix(plan.NetworkName(0), "0")

// metadata are the addresses that tell a cloud's machine who it is and with
// which rights: instance metadata, Azure's wire server, Alibaba's metadata. On
// real servers the link-local ones lead to the management controller.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("168.63.129.16/32"),
	netip.MustParsePrefix("100.100.100.200/32"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::254/128"),
	netip.MustParsePrefix("fd20:ce::254/128"),
	netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"),
}

// rules are the table's chains. DNS passes wherever it goes: some clouds serve
// it at the address of the metadata, and the engine asks the node's resolver
// from within a container's network. What a job may not reach says so at once:
// many programs look for metadata at their start and would wait.
func rules() []chain {
	job := iifname(bridges + "*")
	toJob := oifname(bridges + "*")
	names := []rule{
		{dns("udp"), accept()},
		{dns("tcp"), accept()},
	}
	fromJob := slices.Concat([]rule{{nfproto6(), drop()}}, names, []rule{
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
		}, host...)},

		// A job speaks to the node itself.
		{name: "to_host", rules: slices.Concat([]rule{{nfproto6(), drop()}}, names, []rule{{jump("refuse")}})},
		// Two jobs. With br_netfilter, frames within one bridge come by here too.
		{name: "between", rules: []rule{
			{inSet("iifname . oifname", sameSlot, iifnameTo(1), oifnameTo(2)), accept()},
			{jump("refuse")},
		}},
		// Somebody outside of the node, or another container, speaks to a job.
		{name: "to_job", rules: []rule{
			{ctState("established", "related"), accept()},
			{drop()},
		}},
		// A job speaks to the outside.
		{name: "from_job", rules: fromJob},
		// The node speaks to the cloud; commands of jobs on the host must not.
		{name: "metadata", rules: append(slices.Clone(names),
			rule{inSet("meta skuid", slotUsers, skuidTo(1)), jump("refuse")},
		)},
		// A command of a job on the host speaks to the node itself: many services of a
		// node, DCGM's among them, trust every process that reaches its loopback interface.
		{name: "to_self", rules: slices.Concat([]rule{{ctState("established"), accept()}}, names, []rule{
			{portIn("udp", localPorts), accept()},
			{portIn("tcp", localPorts), accept()},
			{jump("refuse")},
		})},
		// Whoever is refused hears of it.
		{name: "refuse", rules: []rule{{reset()}, {reject()}}},
	}
}

// The table's sets, the only part that depends on the slots.
const (
	sameSlot   = "same_slot"   // a bridge and itself
	slotUsers  = "slot_users"  // user IDs
	localPorts = "local_ports" // of the node, for these users
)

// member is a set and what it holds, by key.
type member struct {
	set      *nftables.Set
	elements []nftables.SetElement
}

func members(list []Slot, ports []uint16) []member {
	same := member{set: &nftables.Set{
		Table: &table, ID: 1, Name: sameSlot, Concatenation: true, // the library's own numbers are not for goroutines
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIFName),
	}}
	users := member{set: &nftables.Set{
		Table: &table, ID: 2, Name: slotUsers, KeyType: nftables.TypeUID, KeyByteOrder: binaryutil.NativeEndian,
	}}
	local := member{set: &nftables.Set{
		Table: &table, ID: 3, Name: localPorts, KeyType: nftables.TypeInetService,
	}}
	for _, p := range ports {
		local.elements = append(local.elements, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(p)})
	}
	for _, s := range list {
		name := ifname(s.Bridge)
		same.elements = append(same.elements, nftables.SetElement{Key: slices.Concat(name, name)})
		users.elements = append(users.elements, nftables.SetElement{Key: binaryutil.NativeEndian.PutUint32(s.UID)})
	}
	all := []member{same, users, local}
	for _, m := range all {
		slices.SortFunc(m.elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	}
	return all
}

// text is the table as nft would print it, without the sets' elements.
func text() string {
	var b strings.Builder
	b.WriteString("table inet " + Name + " {\n")
	for _, c := range rules() {
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
