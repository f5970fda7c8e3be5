// Package firewall keeps the network of a slot's jobs to what lies outside of
// the node: one nftables table of kbnode's own, so that nobody else's rules are
// touched and one operation takes it away. What the rules say is in rules.go.
package firewall

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// Name is the table, of family inet.
const Name = "kbnode"

// Slot is what the rules know of one slot.
type Slot struct {
	Bridge string // the interface of its containers' network
	UID    uint32 // who its commands on the host run as
}

// maxPasswd bounds /etc/passwd, in bytes.
const maxPasswd = 4 << 20

// Slots are the slots that a tree's /etc/passwd has users of. Whoever writes
// the rules asks there, so that all agree on them.
func Slots(root string) ([]Slot, error) {
	f, err := os.Open(filepath.Join(root, "etc/passwd"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the slots' users: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxPasswd))
	if err != nil {
		return nil, fmt.Errorf("read the slots' users: %w", err)
	}
	var list []Slot
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(line, ":")
		k, err := strconv.Atoi(strings.TrimPrefix(fields[0], bridges))
		if err != nil || len(fields) < 3 || k < 0 || fields[0] != plan.UserName(k) {
			continue
		}
		uid, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil || uid == 0 {
			return nil, fmt.Errorf("read the slots' users: user %s has the ID %.20q", fields[0], fields[2])
		}
		list = append(list, Slot{Bridge: plan.NetworkName(k), UID: uint32(uid)})
	}
	slices.SortFunc(list, func(a, b Slot) int { return cmp.Compare(a.Bridge, b.Bridge) })
	return list, nil
}

// maxPolicy bounds a slot's policy, in bytes.
const maxPolicy = 1 << 20

// LocalPorts are the ports of the node that the commands of these slots may reach,
// by the slots' policies in a tree. What cannot be read opens none.
func LocalPorts(root string, list []Slot) []uint16 {
	var ports []uint16
	for _, s := range list {
		k, err := strconv.Atoi(strings.TrimPrefix(s.Bridge, bridges))
		if err != nil {
			continue
		}
		f, err := os.Open(filepath.Join(root, plan.SlotPolicyPath(k)))
		if err != nil {
			continue
		}
		var policy struct {
			LocalPorts []uint16 `json:"local_ports"`
		}
		if json.NewDecoder(io.LimitReader(f, maxPolicy)).Decode(&policy) == nil {
			ports = append(ports, policy.LocalPorts...)
		}
		_ = f.Close()
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// State is what the kernel has of the table.
type State string

// The states of the table.
const (
	Absent  State = "absent"
	Altered State = "altered" // it says something else than Set would
	Intact  State = "intact"
)

var table = nftables.Table{Name: Name, Family: nftables.TableFamilyINet}

// Look compares the kernel's rules with those for these slots, whose commands may
// reach these ports of the node.
func Look(list []Slot, ports ...uint16) (State, error) {
	state, err := look(list, ports)
	if err != nil {
		return "", fmt.Errorf("read the nftables table inet %s: %w", Name, err)
	}
	return state, nil
}

func look(list []Slot, ports []uint16) (State, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.CloseLasting() }()
	tables, err := conn.ListTablesOfFamily(table.Family)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == Name })
	if i < 0 {
		return Absent, nil
	}
	if tables[i].Flags != 0 { // asleep, or somebody else's by now
		return Altered, nil
	}
	chains, err := conn.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return "", err
	}
	chains = slices.DeleteFunc(chains, func(c *nftables.Chain) bool { return c.Table == nil || c.Table.Name != Name })
	want := rules()
	if len(chains) != len(want) {
		return Altered, nil
	}
	for _, w := range want {
		i := slices.IndexFunc(chains, func(c *nftables.Chain) bool { return c.Name == w.name })
		if i < 0 || !w.same(chains[i]) {
			return Altered, nil
		}
		has, err := conn.GetRules(&table, chains[i])
		if err != nil {
			return "", err
		}
		if len(has) != len(w.rules) {
			return Altered, nil
		}
		for i, r := range w.rules {
			if !reflect.DeepEqual(r.exprs(), has[i].Exprs) {
				return Altered, nil
			}
		}
	}
	return sets(conn, list, ports)
}

func sets(conn *nftables.Conn, list []Slot, ports []uint16) (State, error) {
	for _, w := range members(list, ports) {
		has, err := conn.GetSetElements(&nftables.Set{Table: &table, Name: w.set.Name})
		if errors.Is(err, fs.ErrNotExist) {
			return Altered, nil
		}
		if err != nil {
			return "", err
		}
		slices.SortFunc(has, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
		if !slices.EqualFunc(w.elements, has, func(a, b nftables.SetElement) bool { return bytes.Equal(a.Key, b.Key) }) {
			return Altered, nil
		}
	}
	return Intact, nil
}

// Set writes the table for these slots in place of the one that is there. The
// kernel does it in one step: there is no moment without rules.
func Set(list []Slot, ports ...uint16) error {
	conn := &nftables.Conn{}
	conn.AddTable(&table)
	conn.DelTable(&table)
	conn.AddTable(&table)
	for _, m := range members(list, ports) {
		if err := conn.AddSet(m.set, m.elements); err != nil {
			return fmt.Errorf("write the nftables table inet %s: %w", Name, err)
		}
	}
	made := map[string]*nftables.Chain{}
	for _, c := range rules() { // before the rules, which jump to them
		made[c.name] = conn.AddChain(c.nft())
	}
	for _, c := range rules() {
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{Table: &table, Chain: made[c.name], Exprs: r.exprs()})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write the nftables table inet %s: %w; the kernel needs nf_tables: type modprobe -a nf_tables nft_ct nft_reject_inet", Name, err)
	}
	return nil
}

// Ensure makes the kernel have the table for these slots.
func Ensure(list []Slot, ports ...uint16) error {
	// What cannot be read is written anew.
	if state, err := Look(list, ports...); err == nil && state == Intact {
		return nil
	}
	return Set(list, ports...)
}

// Remove takes the table away. There may be none.
func Remove() error {
	conn := &nftables.Conn{}
	conn.AddTable(&table) // what is not there cannot be deleted
	conn.DelTable(&table)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("delete the nftables table inet %s: %w", Name, err)
	}
	return nil
}
