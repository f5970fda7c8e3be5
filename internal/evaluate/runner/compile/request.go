package compile

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// request is what a client asks for.
type request struct {
	Name string // of the compiler
	Argv []string
	Env  []string
	Dir  string // the client's
	// Umask is the client's. Merged says that its output and its errors go to the same file, one after the other.
	Umask  uint32
	Merged bool
}

// key identifies a command line: all that a product depends on, besides files.
type key [sha256.Size]byte

func (r *request) key() key {
	h := sha256.New()
	for _, list := range [][]string{{r.Name, r.Dir, fmt.Sprint(r.Umask, r.Merged)}, r.Argv, r.Env} {
		_ = binary.Write(h, binary.LittleEndian, uint64(len(list))) // a hash takes all
		for _, s := range list {
			_ = binary.Write(h, binary.LittleEndian, uint64(len(s)))
			_, _ = h.Write([]byte(s))
		}
	}
	return key(h.Sum(nil))
}

// prepare makes a request for the compiler itself. In it the compilers' paths replace those that lead to the client, and other
// names replace those of temporary directories. What belongs to the program that asks is left out: the verdict's
// descriptor and the seed, which differ between programs, and which no compiler needs. Its TMPDIR is the compiler's own.
func (r *request) prepare(o *Offer) (*names, error) {
	path := o.compilers[r.Name]
	if path == "" || len(r.Argv) == 0 || !filepath.IsAbs(r.Dir) {
		return nil, fmt.Errorf("no compiler is named %q here", r.Name)
	}
	if strings.Contains(r.Argv[0], "/") {
		r.Argv[0] = path
	}
	var env []string
	for _, kv := range r.Env {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok, strings.HasPrefix(name, "POPCORN_"), name == Variable, name == "_", name == "TMPDIR":
			continue
		case name == "PATH":
			dirs := slices.DeleteFunc(filepath.SplitList(value), func(dir string) bool { return dir == o.dir })
			kv = name + "=" + strings.Join(dirs, string(filepath.ListSeparator))
		}
		env = append(env, kv)
	}
	r.Env = append(env, "TMPDIR="+o.scratch)
	slices.Sort(r.Env)
	n := newNames(o.random)
	r.Dir = n.replace(r.Dir, o.temporary)
	for _, list := range [][]string{r.Argv, r.Env} {
		for i := range list {
			list[i] = n.replace(o.lead(list[i]), o.temporary)
			if strings.Contains(list[i], "\x00") {
				return nil, errors.New("an argument holds a null byte")
			}
		}
	}
	// Names are not seen in what is compressed.
	if len(n.stand) > 0 && slices.ContainsFunc(r.Argv, func(arg string) bool { return strings.HasPrefix(arg, "-gz") || strings.HasPrefix(arg, "-flto") }) {
		return nil, errors.New("names in compressed products")
	}
	if slices.ContainsFunc(r.Argv, func(arg string) bool {
		return slices.ContainsFunc(times, func(t string) bool { return strings.Contains(arg, t) })
	}) {
		return nil, errors.New("an argument asks for the time")
	}
	if n.full {
		return nil, errors.New("too many temporary directories")
	}
	return n, nil
}

// lead replaces paths that lead to the client with the compilers' own: torch gives CC to nvcc.
func (o *Offer) lead(text string) string {
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(text, o.dir+"/")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		name, _, _ := strings.Cut(after[:min(len(after), maxCompiler)], " ")
		if end := strings.IndexAny(name, "\t\n,;:'\""); end >= 0 {
			name = name[:end]
		}
		path, known := o.compilers[name]
		if !known {
			path, name = o.dir+"/", ""
		}
		b.WriteString(path)
		text = after[len(name):]
	}
}

// maxCompiler bounds the name of a compiler.
const maxCompiler = 64
