package firewall

import "strings"

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

func (r rule) text() string {
	words := make([]string, len(r))
	for i, p := range r {
		words[i] = p.nft
	}
	return strings.Join(words, " ")
}
