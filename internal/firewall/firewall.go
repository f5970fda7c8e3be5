// Package firewall limits the network of a slot's jobs to what is outside the node. It
// uses one nftables table of kbnode's own, so that it touches no one else's rules and one
// operation removes it. The rules are in rules.go.
package firewall

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"

	"github.com/google/nftables"
)

// Name is the name of the table, of family inet.
const Name = "kbnode"

// State is the state of the table in the kernel.
type State string

// The states of the table.
const (
	Absent  State = "absent"
	Altered State = "altered" // it differs from what Ensure would write
	Intact  State = "intact"
)

var table = nftables.Table{Name: Name, Family: nftables.TableFamilyINet}

// State compares the rules in the kernel with those for this node.
func (n Node) State() (State, error) {
	state, err := n.readState()
	if err != nil {
		return "", fmt.Errorf("read the nftables table inet %s: %w", Name, err)
	}
	return state, nil
}

func (n Node) readState() (State, error) {
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
	if tables[i].Flags != 0 { // dormant, or someone else's by now
		return Altered, nil
	}
	chains, err := conn.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return "", err
	}
	chains = slices.DeleteFunc(chains, func(c *nftables.Chain) bool { return c.Table == nil || c.Table.Name != Name })
	want := n.rules()
	if len(chains) != len(want) {
		return Altered, nil
	}
	for _, w := range want {
		i := slices.IndexFunc(chains, func(c *nftables.Chain) bool { return c.Name == w.name })
		if i < 0 || !w.sameHook(chains[i]) {
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
	return n.sets(conn)
}

func (n Node) sets(conn *nftables.Conn) (State, error) {
	for _, w := range n.members() {
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

// Ensure writes the table for this node unless the kernel has it. The kernel replaces it in
// one step: there is no moment without rules.
func (n Node) Ensure() error {
	// Rules that cannot be read are written again.
	if state, err := n.State(); err == nil && state == Intact {
		return nil
	}
	conn := &nftables.Conn{}
	conn.AddTable(&table)
	conn.DelTable(&table)
	conn.AddTable(&table)
	for _, m := range n.members() {
		if err := conn.AddSet(m.set, m.elements); err != nil {
			return fmt.Errorf("write the nftables table inet %s: %w", Name, err)
		}
	}
	made := map[string]*nftables.Chain{}
	chains := n.rules()
	for _, c := range chains { // before the rules, which jump to them
		made[c.name] = conn.AddChain(c.nft())
	}
	for _, c := range chains {
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{Table: &table, Chain: made[c.name], Exprs: r.exprs()})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write the nftables table inet %s: %w; the kernel needs nf_tables; run modprobe -a nf_tables nft_ct nft_reject_inet", Name, err)
	}
	return nil
}

// Remove deletes the table. It is not an error if there is none.
func Remove() error {
	conn := &nftables.Conn{}
	conn.AddTable(&table) // a missing table cannot be deleted
	conn.DelTable(&table)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("delete the nftables table inet %s: %w", Name, err)
	}
	return nil
}
