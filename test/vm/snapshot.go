package vm

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// Snapshot is a template of its own: one of t's machines after prepare. Close ends
// it. What many tests begin with is done once.
func (t *Template) Snapshot(ctx context.Context, prepare func(context.Context, *VM) error) (*Template, error) {
	dir, lock, err := newRunDir()
	if err != nil {
		return nil, err
	}
	s := &Template{dir: dir, fw: t.fw, use: lock}
	if err := s.freezeFrom(ctx, t, prepare); err != nil {
		return nil, errors.Join(fmt.Errorf("make a snapshot: %w", err), s.Close())
	}
	return s, nil
}

func (t *Template) freezeFrom(ctx context.Context, from *Template, prepare func(context.Context, *VM) error) error {
	for node := range NUMANodes {
		// The files have as many holes as the guest has free memory.
		ram := "ram" + strconv.Itoa(node)
		if err := runProgram(exec.CommandContext(ctx, "cp", "--sparse=always", filepath.Join(from.dir, ram), filepath.Join(t.dir, ram))); err != nil {
			return err
		}
	}
	disk := filepath.Join(t.dir, "disk.qcow2")
	if err := newDisk(ctx, disk, filepath.Join(from.dir, "disk.qcow2"), "qcow2"); err != nil {
		return err
	}
	m, err := start(append(qemuArgs(t.fw, memory{dir: t.dir, shared: true}, disk, ""), "-incoming", "defer"), nil)
	if err != nil {
		return err
	}
	err = m.resume(ctx, filepath.Join(from.dir, "state"))
	if err == nil {
		err = prepare(ctx, m)
	}
	if err == nil {
		err = m.freeze(ctx, filepath.Join(t.dir, "state"))
	}
	return errors.Join(err, m.Close())
}

// Close removes what a snapshot needs. Its machines must have ended.
func (t *Template) Close() error {
	return errors.Join(runProgram(exec.Command("rm", "-rf", t.dir)), t.use.Close())
}

// ForkOf is Fork from a snapshot, in which the tools are already.
func ForkOf(t testing.TB, from *Template) *Machine {
	t.Helper()
	v, err := from.Fork(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return newMachine(t, v)
}

// Base is the template that Fork uses.
func Base() (*Template, error) { return templates[Trixie]() }
