package compile

import (
	"io"
	"os"
	"unsafe"
)

// entry is what a compiler made, and what that depends on.
type entry struct {
	facts          []fact
	stdout, stderr []byte
	products       []product
}

// product is a file or a directory.
type product struct {
	Path string
	Dir  bool   `json:",omitempty"`
	Mode uint32 `json:",omitempty"`
	Size int64  `json:",omitempty"`
	file *os.File
}

// find returns what was made from the same before.
func (o *Offer) find(k key, n *names) *entry {
	o.Lock()
	known := o.entries[k]
	o.Unlock()
	for _, e := range known {
		if o.holds(n, e.facts) {
			return e
		}
	}
	return nil
}

// holds reports whether a program finds what a compiler found.
func (o *Offer) holds(n *names, facts []fact) bool {
	for _, want := range facts {
		got, err := n.observe(want.path, io.Discard)
		if err != nil || o.ctx.Err() != nil || got.kind != want.kind || got.mode != want.mode || got.hash != want.hash {
			return false
		}
	}
	return true
}

// keep keeps what a compiler made until the job ends, if there is room.
func (s *Service) keep(k key, e *entry) bool {
	var size int64
	for _, p := range e.products {
		size += p.Size
	}
	known := int64(len(e.stdout) + len(e.stderr))
	for _, f := range e.facts {
		known += int64(len(f.path)) + int64(unsafe.Sizeof(f))
	}
	s.Lock()
	defer s.Unlock()
	if s.count+len(e.products) > maxProducts || s.size+size > maxStore || s.known+known > maxKnown {
		return false
	}
	s.count += len(e.products)
	s.size += size
	s.known += known
	s.entries[k] = append(s.entries[k], e)
	return true
}

func (e *entry) close() {
	for _, p := range e.products {
		if p.file != nil {
			_ = p.file.Close()
		}
	}
}
