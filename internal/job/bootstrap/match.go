package bootstrap

// matcher finds texts in a stream, byte by byte, in a time that does not depend on them: the algorithm of Aho and
// Corasick. A state is the longest end of the stream that a text begins with, and 0 is none. The zero matcher has no text.
type matcher struct{ nodes []node }

// node is a state, and the last byte of the beginning that it stands for.
type node struct {
	child, sibling int32 // the first state that is a byte longer, and the next with the same parent; 0 is none
	fail           int32 // the longest state that this one ends with
	begun          int32 // how many of its bytes a longer one may begin with
	found          int32 // the length of the longest text that it ends with; 0 is none
	last           byte
}

// add adds a text. Before the next search, link must be called.
func (m *matcher) add(text string) {
	if m.nodes == nil {
		m.nodes = make([]node, 1)
	}
	at := int32(0)
	for i := range len(text) {
		to := m.child(at, text[i])
		if to == 0 {
			to = int32(len(m.nodes))
			m.nodes = append(m.nodes, node{sibling: m.nodes[at].child, last: text[i]})
			m.nodes[at].child, m.nodes[at].begun = to, int32(i)
		}
		at = to
	}
	m.nodes[at].found = int32(len(text))
}

// child returns the state after a byte that goes on with the same text, or 0.
func (m *matcher) child(at int32, b byte) int32 {
	c := m.nodes[at].child
	for c != 0 && m.nodes[c].last != b {
		c = m.nodes[c].sibling
	}
	return c
}

// link finds out what each state ends with, the shorter ones first.
func (m *matcher) link() {
	if m.nodes == nil {
		return
	}
	queue := make([]int32, 1, len(m.nodes))
	for i := 0; i < len(queue); i++ {
		at := queue[i]
		for c := m.nodes[at].child; c != 0; c = m.nodes[c].sibling {
			n := &m.nodes[c]
			n.fail = 0
			if at != 0 {
				n.fail = m.step(m.nodes[at].fail, n.last)
			}
			n.found = max(n.found, m.nodes[n.fail].found)
			if n.child == 0 {
				n.begun = m.nodes[n.fail].begun
			}
			queue = append(queue, c)
		}
	}
}

// step returns the state after a byte.
func (m *matcher) step(at int32, b byte) int32 {
	for {
		if c := m.child(at, b); c != 0 || at == 0 {
			return c
		}
		at = m.nodes[at].fail
	}
}

// next returns the state after a byte, and the length of the longest text that ends with it, or 0.
func (m *matcher) next(at int32, b byte) (state int32, found int) {
	if m.nodes == nil {
		return 0, 0
	}
	state = m.step(at, b)
	return state, int(m.nodes[state].found)
}

// begun returns how many of the last bytes of a stream may be the beginning of a text.
func (m *matcher) begun(state int32) int {
	if m.nodes == nil {
		return 0
	}
	return int(m.nodes[state].begun)
}
