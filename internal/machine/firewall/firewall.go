// Package firewall limits the network of a slot's jobs to what is outside the node. It
// uses one nftables table of kbnode's own, so that it touches no one else's rules and one
// operation removes it. The rules are in rules.go.
package firewall

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
)

// Name is the name of the table, of family inet.
const Name = "kbnode"

// State is the state of the table in the kernel.
type State string

// The states of the table.
const (
	Absent  State = "absent"
	Altered State = "altered" // it is of another version
	Intact  State = "intact"
)

var table = nftables.Table{Name: Name, Family: nftables.TableFamilyINet}

// State compares the rules in the kernel with those for this node, by their version: only root changes
// rules in place, and Ensure restores them before each container.
func (n Node) State() (State, error) {
	chains, err := (&nftables.Conn{}).ListChainsOfTableFamily(table.Family)
	if err != nil {
		return "", fmt.Errorf("read the nftables table inet %s: %w", Name, err)
	}
	state := Absent
	for _, c := range chains {
		switch {
		case c.Table == nil || c.Table.Name != Name:
		case c.Name == n.version():
			return Intact, nil
		default:
			state = Altered
		}
	}
	return state, nil
}

// version is the name of a chain without rules, which tells one table from another.
func (n Node) version() string {
	all := []byte(n.text())
	for _, m := range n.members() {
		for _, e := range m.elements {
			all = append(all, e.Key...)
		}
	}
	return fmt.Sprintf("version_%x", sha256.Sum256(all))[:24]
}

// buffer is the size in bytes of a socket's buffers that hold a table and the kernel's answer to each
// of its messages, which come all at once. The default has room for some 140 rules.
const buffer = 8 << 20

// Ensure writes the table for this node. The kernel replaces it in one step: there is no moment without
// rules.
func (n Node) Ensure() error {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer))
	}))
	if err != nil {
		return fmt.Errorf("write the nftables table inet %s: %w", Name, err)
	}
	conn.AddTable(&table)
	conn.DelTable(&table)
	conn.AddTable(&table)
	for _, m := range n.members() {
		if err := conn.AddSet(m.set, m.elements); err != nil {
			return fmt.Errorf("write the nftables table inet %s: %w", Name, err)
		}
	}
	conn.AddChain(&nftables.Chain{Table: &table, Name: n.version()})
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
