// Package vm is the virtual machine rig: a booted Debian with Docker, the real
// buildkite-agent and eight simulated GPUs, which a test forks in about a
// second. It drives QEMU under software emulation and knows nothing of kbnode.
package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/test/vm/wire"
)

// The machine that the rig emulates, and that tests may count on.
const (
	CPUs       = 20 // 2 sockets, 5 cores each, 2 threads each; siblings are k and k+10
	NUMANodes  = 2  // CPUs 0-4,10-14 and 5-9,15-19
	GPUs       = 8  // four on each node
	nodeMemory = 2 << 30
	qemuBinary = "qemu-system-x86_64"
	// The kernel patches its scheduler's code where NUMA balancing is switched, and the
	// emulator then runs half of a patch now and then, which is the guest's end.
	kernelWords = "root=/dev/vda console=ttyS0 panic=1 quiet loglevel=4 systemd.show_status=0 numa_balancing=disable " +
		"mitigations=off random.trust_cpu=on nowatchdog audit=0 tsc=reliable"
)

// firmware is what QEMU is started with besides memory and disk.
type firmware struct{ kernel, initrd string }

// memory says which files back the guest's RAM; shared memory is what a
// template leaves behind, private memory is what a fork maps on top.
type memory struct {
	dir    string
	shared bool
}

// qemuArgs is the whole machine. Source and destination of a migration must
// agree on all devices, so the template and its forks differ only in words.
func qemuArgs(fw firmware, mem memory, disk, extra string) []string {
	share := "off"
	if mem.shared {
		share = "on"
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-nic", "none",
		"-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512",
		// Intel's way of telling the topology needs no feature that TCG lacks.
		"-cpu", "max,vendor=GenuineIntel,la57=off,svm=off",
		"-smp", fmt.Sprintf("%d,sockets=2,dies=1,cores=5,threads=2", CPUs),
		"-m", fmt.Sprint(NUMANodes * nodeMemory >> 20),
		"-rtc", "base=utc",
		"-kernel", fw.kernel, "-initrd", fw.initrd, "-append", kernelWords + extra,
		"-qmp", "unix:qmp.sock,server=on,wait=off",
		"-chardev", "file,id=console,path=serial.log", "-serial", "chardev:console",
		"-device", "virtio-serial-pci,max_ports=4",
		"-chardev", "socket,id=ctl,path=ctl.sock,server=on,wait=off",
		"-device", "virtserialport,chardev=ctl,name=" + wire.PortName,
	}
	for node := range NUMANodes {
		args = append(args,
			"-object", fmt.Sprintf("memory-backend-file,id=ram%d,size=%d,mem-path=%s,share=%s",
				node, nodeMemory, filepath.Join(mem.dir, fmt.Sprintf("ram%d", node)), share),
			"-numa", fmt.Sprintf("node,nodeid=%d,memdev=ram%d", node, node),
			"-numa", fmt.Sprintf("cpu,node-id=%d,socket-id=%d", node, node))
	}
	args = append(args, "-numa", "dist,src=0,dst=1,val=21")
	if disk != "" {
		args = append(args,
			"-drive", "if=none,id=disk,format=qcow2,cache=unsafe,discard=unmap,file="+disk,
			"-device", "virtio-blk-pci,drive=disk,num-queues=2")
	}
	// A host bridge on each node, with the places of four GPUs behind it.
	for gpu := range GPUs {
		node, position := gpu/4, gpu%4
		if position == 0 {
			args = append(args, "-device",
				fmt.Sprintf("pxb-pcie,id=host%d,bus=pcie.0,bus_nr=%d,numa_node=%d", node, 0x20+0x60*node, node))
		}
		args = append(args,
			"-device", fmt.Sprintf("pcie-root-port,id=port%d,bus=host%d,addr=%d,chassis=%d,slot=%d,io-reserve=0",
				gpu, node, position, 1+gpu, 1+gpu),
			"-device", fmt.Sprintf("pci-testdev,bus=port%d", gpu))
	}
	// The place of a network card, which Join plugs.
	return append(args, "-device", fmt.Sprintf("pcie-root-port,id=%s,bus=pcie.0,chassis=%d,slot=%d", cablePort, 1+GPUs, 1+GPUs))
}

// VM is one running machine.
type VM struct {
	// Dir holds the sockets, the disk's differences, serial.log and qemu.log.
	Dir string

	proc  *os.Process
	ended chan struct{} // closed when QEMU has ended
	lock  *os.File
	qmp   *qmp
	guest *guest
	boot  string
	slow  float64 // how many times the reference's time things take; 0 until it is measured
}

// start runs QEMU in a fresh directory, which prepare may fill. It dies with
// this process.
func start(args []string, prepare func(dir string) error) (*VM, error) {
	dir, lock, err := newRunDir()
	if err != nil {
		return nil, err
	}
	m := &VM{Dir: dir, lock: lock, ended: make(chan struct{})}
	if prepare != nil {
		if err := prepare(dir); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	logFile, err := os.Create(filepath.Join(dir, "qemu.log"))
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	cmd := exec.Command(qemuBinary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		defer func() { _ = logFile.Close() }()
		// The death signal is tied to the thread that started the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			// A fault of the emulator leaves nothing else.
			_, _ = fmt.Fprintf(logFile, "QEMU ended: %v\n", cmd.Wait())
			close(m.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start QEMU: %w", err), m.Close())
	}
	m.proc = cmd.Process
	return m, nil
}

// connect opens both sockets. The guest may still be booting.
func (m *VM) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-m.ended:
			cancel(fmt.Errorf("QEMU ended:\n%s", m.Log("qemu.log")))
		case <-ctx.Done():
		}
	}()
	var err error
	if m.qmp, err = dialQMP(ctx, filepath.Join(m.Dir, "qmp.sock")); err == nil {
		m.guest, err = dialGuest(ctx, filepath.Join(m.Dir, "ctl.sock"))
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Ready waits for the command channel; not for the boot to be complete.
func (m *VM) Ready(ctx context.Context) (err error) {
	m.boot, err = m.guest.hello(ctx, "")
	return err
}

// Run runs a command as root in the guest. An error means that there is no
// exit status: the command was not found, ctx ended, or the machine went away.
func (m *VM) Run(ctx context.Context, stdin io.Reader, argv ...string) (Result, error) {
	return m.guest.run(ctx, stdin, wire.Command{Argv: argv})
}

// Stream is Run with the output as it comes.
func (m *VM) Stream(ctx context.Context, stdout, stderr io.Writer, argv ...string) (code int, err error) {
	s, err := m.guest.start(wire.Command{Argv: argv}, stdout, stderr)
	if err == nil {
		err = s.input(strings.NewReader(""))
	}
	if err != nil {
		return -1, err
	}
	st, err := s.wait(ctx)
	return st.Code, err
}

// Terminal runs a command on a terminal of its own in the guest. Sizes are
// rows and columns; the first is expected at once.
func (m *VM) Terminal(ctx context.Context, stdin io.Reader, stdout io.Writer, sizes <-chan [2]uint16, argv ...string) (code int, err error) {
	size := <-sizes
	s, err := m.guest.start(wire.Command{Argv: argv, TTY: true, Rows: size[0], Cols: size[1]}, stdout, io.Discard)
	if err != nil {
		return -1, err
	}
	go func() { _ = s.input(stdin) }()
	go func() {
		for size := range sizes {
			if s.resize(size[0], size[1]) != nil {
				return
			}
		}
	}()
	st, err := s.wait(ctx)
	return st.Code, err
}

// Put writes a file in the guest, atomically, and its missing directories.
func (m *VM) Put(ctx context.Context, path string, mode os.FileMode, content io.Reader) error {
	const script = `mkdir -p "$(dirname "$1")" && cat >"$1.put~" && chmod "$2" "$1.put~" && mv "$1.put~" "$1"`
	r, err := m.Run(ctx, content, "sh", "-c", script, "sh", path, fmt.Sprintf("%o", mode.Perm()))
	if err == nil && r.Code != 0 {
		err = errors.New(strings.TrimSpace(r.Stderr))
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", path, err)
	}
	return nil
}

// Booted waits until systemd has started everything and returns its verdict:
// "running", or "degraded" with the units that failed.
func (m *VM) Booted(ctx context.Context) (string, error) {
	r, err := m.Run(ctx, nil, "systemctl", "is-system-running", "--wait")
	if err != nil {
		return "", fmt.Errorf("wait for the boot: %w", err)
	}
	state := strings.TrimSpace(r.Stdout)
	if state != "running" {
		r, err = m.Run(ctx, nil, "systemctl", "--no-legend", "--plain", "--failed")
		state += "\n" + r.Stdout
	}
	return state, err
}

// Reboot restarts the guest the orderly way and waits for its command channel.
func (m *VM) Reboot(ctx context.Context) error {
	if _, err := m.Run(ctx, nil, "systemctl", "--no-block", "reboot"); err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	return m.comeBack(ctx)
}

// Reset is the reset button: nothing in the guest gets to finish.
func (m *VM) Reset(ctx context.Context) error {
	if _, err := m.qmp.call(ctx, "system_reset", nil); err != nil {
		return err
	}
	return m.comeBack(ctx)
}

// bootPatience is several times what a shutdown and a boot take, emulated.
const bootPatience = 4 * time.Minute

// comeBack waits for the guest's next boot. In the emulator a kernel sometimes
// loses a timer while it boots and waits for it forever: then it is reset.
func (m *VM) comeBack(ctx context.Context) error {
	for {
		once, cancel := context.WithTimeout(ctx, m.Limit(bootPatience))
		boot, err := m.guest.hello(once, m.boot)
		cancel()
		if err == nil {
			m.boot = boot
			m.guest.drop(errRebooted)
			return nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("come back from a reboot: %w", err)
		}
		if _, err := m.qmp.call(ctx, "system_reset", nil); err != nil {
			return err
		}
	}
}

// Close ends the machine and removes its directory.
func (m *VM) Close() error {
	if m.proc != nil {
		_ = m.proc.Kill()
		<-m.ended
	}
	if m.guest != nil {
		_ = m.guest.conn.Close()
	}
	if m.qmp != nil {
		_ = m.qmp.conn.Close()
	}
	err := os.RemoveAll(m.Dir)
	return errors.Join(err, m.lock.Close())
}

// Log returns the end of a log file of the machine: "serial.log" or "qemu.log".
func (m *VM) Log(name string) string {
	b, err := os.ReadFile(filepath.Join(m.Dir, name))
	if err != nil {
		return err.Error()
	}
	const most = 16 << 10
	return string(b[max(0, len(b)-most):])
}

// panics returns the kernel's last words, one line for each time it died.
func (m *VM) panics() (words []string) {
	b, _ := os.ReadFile(filepath.Join(m.Dir, "serial.log")) // no log, no words
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "Kernel panic - not syncing") && !strings.Contains(line, "end Kernel panic") {
			words = append(words, strings.TrimSpace(line))
		}
	}
	return words
}

const runDirPattern = "kbvm-"

// newRunDir makes a directory, short enough for socket names, that is locked
// while its owner lives, and removes those whose owner was killed.
func newRunDir() (string, *os.File, error) {
	old, err := filepath.Glob(filepath.Join(os.TempDir(), runDirPattern+"*"))
	if err != nil {
		return "", nil, err
	}
	for _, dir := range old {
		lock, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue // not ours, or being removed
		}
		if st, err := lock.Stat(); err != nil || time.Since(st.ModTime()) < time.Minute {
			_ = lock.Close()
			continue // perhaps made and not yet locked
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close()
	}
	dir, err := os.MkdirTemp("", runDirPattern)
	if err != nil {
		return "", nil, err
	}
	lock, err := lockFile(context.Background(), filepath.Join(dir, "lock"))
	return dir, lock, err
}

// lockFile makes a file and waits for its lock, which ends with the process.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
