package compile

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"slices"
	"time"
)

// A client gets frames, each with its kind and its length, and after the last one the content of the products.
const (
	outFrame  = 'o' // text that the compiler wrote to its output
	errFrame  = 'e' // to its errors
	lastFrame = 'l'
	frameHead = 5 // bytes of a kind and a length
)

// result is what the last frame has.
type result struct {
	Products []product
}

// asker is the runner's end of a connection to a client.
type asker struct {
	*names
	conn *os.File
	err  error
}

func (a *asker) write(data []byte) error {
	if a.err == nil {
		_, a.err = a.conn.Write(data)
	}
	return a.err
}

func (a *asker) frame(kind byte, data []byte) {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(data)))
	_ = a.write(append(head, data...)) // the error stays
}

// finish sends all that a compiler left.
func (a *asker) finish(o *Offer, e *entry) {
	defer o.rest()() // a client may never read
	a.frame(outFrame, e.stdout)
	a.frame(errFrame, e.stderr)
	r := result{slices.Clone(e.products)}
	for i := range r.Products {
		r.Products[i].Path = a.realPath(r.Products[i].Path)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return
	}
	a.frame(lastFrame, text)
	for _, p := range e.products {
		if p.Size == 0 || a.err != nil {
			continue
		}
		_, a.err = io.Copy(a.conn, io.NewSectionReader(p.file, 0, p.Size))
	}
}

// serve compiles for a client. One that gets no last frame compiles by itself.
func (o *Offer) serve(conn *os.File) {
	defer conn.Close()               //nolint:errcheck // the client sees what is missing
	defer func() { _ = recover() }() // a fault must not end the runner
	detach := context.AfterFunc(o.ctx, func() { _ = conn.Close() })
	defer detach()
	_ = conn.SetDeadline(time.Now().Add(askLimit))
	var r request
	if json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&r) != nil {
		return
	}
	defer o.work()()
	n, err := r.prepare(o)
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	a := &asker{names: n, conn: conn}
	k := r.key()
	if e := o.find(k, n); e != nil {
		a.finish(o, e)
		return
	}
	e := o.compile(&r, a)
	if e == nil || o.ctx.Err() != nil {
		return
	}
	if !o.keep(k, e) {
		defer e.close()
	}
	a.finish(o, e)
}

// outputs are what a compiler writes, in memory.
type outputs [2]*os.File

func newOutputs() (o outputs, err error) {
	for i := range o {
		if o[i], err = newMemory("output"); err != nil {
			break
		}
	}
	return o, err
}

func (o outputs) close() {
	for _, f := range o {
		_ = f.Close() // in memory; nil has nothing to close
	}
}

// texts returns what was written. ok is false if that is too much.
func (o outputs) texts() (texts [2][]byte, ok bool) {
	for i, f := range o {
		text, err := io.ReadAll(io.NewSectionReader(f, 0, maxMessages+1))
		if err != nil || len(text) > maxMessages {
			return texts, false
		}
		texts[i] = text
	}
	return texts, true
}

// compile runs a compiler. It returns what the compiler made, nil if it failed, which it may not without the runner, or
// if another program might get something else.
func (o *Offer) compile(r *request, a *asker) *entry {
	f := &files{names: a.names, umask: r.Umask, links: &o.links, dir: r.Dir, hidden: o.hidden, roots: []string{o.scratch}, scratch: o.scratch, listing: o.listing}
	f.nodes = map[string]*node{o.scratch: {kind: isDirectory, mode: 0o700, made: true}}
	for _, root := range o.roots {
		f.roots = append(f.roots, a.replace(root, o.temporary))
	}
	var made []product
	defer func() { f.close(made) }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil
	}
	defer null.Close() //nolint:errcheck // nothing is written
	out, err := newOutputs()
	defer out.close()
	if err != nil {
		return nil
	}
	errs := out[1]
	if r.Merged {
		errs = out[0]
	}
	code, ok := o.runCompiler(Process{Path: o.compilers[r.Name], Argv: r.Argv, Env: r.Env, Files: []*os.File{null, out[0], errs}, Umask: int(r.Umask)}, f)
	texts, fit := out.texts()
	if o.ctx.Err() != nil && fit {
		o.leave(texts)
	}
	if !ok || code != 0 || !fit || f.unsafe != nil {
		return nil
	}
	if made, err = f.products(); err == nil && !a.hides(made, texts) {
		err = errNotShared
	}
	if err != nil {
		made = nil
		return nil
	}
	return &entry{facts: f.facts, stdout: texts[0], stderr: texts[1], products: made}
}

// hides reports whether what a compiler made and wrote has no name in it that stands for another.
func (n *names) hides(made []product, texts [2][]byte) bool {
	if len(n.stand) == 0 {
		return true
	}
	for _, p := range made {
		if !p.Dir && n.isIn(io.NewSectionReader(p.file, 0, p.Size)) {
			return false
		}
	}
	return !n.isIn(bytes.NewReader(texts[0])) && !n.isIn(bytes.NewReader(texts[1]))
}

// runCompiler runs a compiler to its end.
func (o *Offer) runCompiler(p Process, f *files) (code int, ok bool) {
	o.running.Lock()
	if o.ctx.Err() != nil {
		o.running.Unlock()
		return 0, false
	}
	pid, calls, ended, err := o.start.Start(p)
	if err != nil {
		o.running.Unlock()
		return 0, false
	}
	o.ids[pid] = f
	o.running.Unlock()
	t := &trace{files: f, calls: calls, work: o.work}
	traced := make(chan struct{})
	go func() {
		defer close(traced)
		t.run()
	}()
	limit := time.NewTimer(Limit)
	defer limit.Stop()
	again := o.rest() // the compiler's calls need the runner, too
	defer again()
	for waiting := true; waiting; {
		select {
		case s := <-ended:
			code, ok, waiting = s.ExitStatus(), s.Exited(), false
		case <-limit.C:
			o.start.Kill(pid)
		case <-o.ctx.Done():
			o.start.Kill(pid)
			waiting = false
		}
	}
	// No process that is left writes to a product.
	select {
	case <-traced:
	case <-time.After(endLimit):
		ok = false
	}
	o.running.Lock()
	delete(o.ids, pid)
	o.running.Unlock()
	_ = calls.Close()
	<-traced
	return code, ok
}
