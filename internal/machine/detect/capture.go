package detect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Limits of an archive. A machine with 512 CPUs has 2,000 files, 200 KiB.
const (
	maxArchive      = 64 << 20
	maxArchiveFiles = 50_000
	maxArchivePath  = 512
)

const archiveComment = `A machine as kbnode inventory --capture saw it. Read it with --root FILE, for
example: kbnode plan --root FILE
`

// Capture writes a machine as a text archive (txtar) of the files that Read uses, with the
// answers of drivers and daemons in kbnode/live.json and kbnode/nvml.json. Reading the
// archive gives the same result as reading the machine, except for the host name and serial
// numbers, which it omits unless opts.KeepNames is set: captures go into bug reports.
func Capture(ctx context.Context, opts Options, w io.Writer) error {
	t, err := openTree(opts.Root)
	if err != nil {
		return err
	}
	defer t.close() //nolint:errcheck // nothing was written
	t.captured = map[string]string{}
	inv, _ := readFiles(t)
	if len(inv.CPU.List) == 0 {
		return fmt.Errorf("capture machine: no CPU below %s/%s", strings.TrimSuffix(t.root, "/"), cpuDir)
	}
	if err := captureNVML(ctx, t, inv, opts.KeepNames); err != nil {
		return err
	}
	placeGPUs(t, inv) // the nodes of some GPUs are in other files
	live := readLive(ctx, t, opts)
	checkCDI(t, inv.GPUs, &live.Software.Docker)
	if !opts.KeepNames {
		live.Hostname = ""
		delete(t.captured, "etc/hostname")
	}
	// One CPU is enough; 500 take a megabyte.
	if text, ok := t.captured["proc/cpuinfo"]; ok {
		t.captured["proc/cpuinfo"], _, _ = strings.Cut(text, "\n\n")
	}
	delete(t.captured, livePath)
	if t.live() || live.Schema != 0 {
		live.Schema = inventory.Schema
		text, err := json.MarshalIndent(live, "", "\t")
		if err != nil {
			return fmt.Errorf("capture machine: %w", err)
		}
		t.captured[livePath] = string(text)
	}
	for name, text := range t.captured { // of network cards and the like
		if path.Base(name) == "vendor" && text != nvidiaVendor && text != amdVendor {
			delete(t.captured, name)
		}
	}
	return writeArchive(w, t.captured)
}

// captureNVML adds NVML's report, current or captured, and the files that are read with it.
// A machine without NVML has only the files.
func captureNVML(ctx context.Context, t tree, inv *inventory.Inventory, keepNames bool) error {
	report, err := askNVML(ctx, t)
	delete(t.captured, nvmlPath)
	gpus, _, _ := nvidiaGPUs(t, report, err)
	inv.GPUs = append(inv.GPUs, gpus...)
	if report == nil && err != nil && len(gpus) > 0 {
		report = &nvml.Report{Schema: nvml.Schema, Error: err.Error()} // why there is none
	}
	if report == nil {
		return nil
	}
	if !keepNames {
		for i := range report.GPUs {
			report.GPUs[i].Serial = ""
		}
	}
	text, err := json.MarshalIndent(report, "", "\t")
	if err != nil {
		return fmt.Errorf("capture %s: %w", nvmlPath, err)
	}
	t.captured[nvmlPath] = string(text)
	return nil
}

func writeArchive(w io.Writer, files map[string]string) error {
	archive := txtar.Archive{Comment: []byte(archiveComment)}
	full := map[string]bool{} // directories with files that were read
	for name := range files {
		if !strings.HasSuffix(name, dirMark) {
			for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
				full[dir] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if dir, mark := strings.CutSuffix(name, dirMark); mark && full[dir] {
			continue
		}
		text := files[name]
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "-- ") && strings.HasSuffix(strings.TrimSpace(line), " --") {
				return fmt.Errorf("capture %s: an archive cannot contain its line %q", name, strings.TrimSpace(line))
			}
		}
		if strings.ContainsAny(name, "\r\n") {
			return fmt.Errorf("capture %q: an archive cannot contain a file with this name", name)
		}
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(text)})
	}
	if _, err := w.Write(txtar.Format(&archive)); err != nil {
		return fmt.Errorf("write captured machine: %w", err)
	}
	return nil
}

// Open returns a root for Read from the argument of --root: a directory as it is, or a
// captured machine, unpacked into a temporary directory that closeRoot removes.
func Open(name string) (root string, closeRoot func() error, err error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", nil, fmt.Errorf("open machine: %w", text.FileError(name, err, "name a directory with a machine's files, or a file made by kbnode inventory --capture"))
	}
	if info.IsDir() {
		return name, func() error { return nil }, nil
	}
	if !info.Mode().IsRegular() || info.Size() > maxArchive {
		return "", nil, fmt.Errorf("open machine %s: neither a directory nor an archive of at most %d MiB; give a file made by kbnode inventory --capture", name, maxArchive>>20)
	}
	doc, err := os.ReadFile(name)
	if err != nil {
		return "", nil, fmt.Errorf("open machine: %w", text.FileError(name, err, ""))
	}
	archive := txtar.Parse(doc)
	switch n := len(archive.Files); {
	case bytes.HasPrefix(doc, []byte{0x1f, 0x8b}):
		return "", nil, config.BadInput("open machine: %s is compressed; unpack it first, with gunzip", name)
	case n == 0 && bytes.HasPrefix(bytes.TrimSpace(doc), []byte("{")):
		return "", nil, config.BadInput("open machine: %s is JSON, as of kbnode inventory --json; give a file made by kbnode inventory --capture", name)
	case n == 0 || n > maxArchiveFiles:
		return "", nil, config.BadInput("open machine: %s is no recording, with %d files in it; give a directory, or a file made by kbnode inventory --capture", name, n)
	}
	dir, err := os.MkdirTemp("", "kbnode-machine-")
	if err != nil {
		return "", nil, fmt.Errorf("unpack machine: %w", err)
	}
	closeRoot = func() error { return os.RemoveAll(dir) }
	if err := unpack(archive, dir); err != nil {
		return "", nil, errors.Join(fmt.Errorf("unpack machine %s: %w", name, err), closeRoot())
	}
	return dir, closeRoot, nil
}

// unpack writes an archive's files below dir and nowhere else.
func unpack(archive *txtar.Archive, dir string) error {
	for _, f := range archive.Files {
		if !fs.ValidPath(f.Name) || len(f.Name) > maxArchivePath {
			return fmt.Errorf("%.80q is not a path within a machine", f.Name)
		}
		if strings.HasPrefix(f.Name, "var/lib/kbnode/") && controls().Match(f.Data) { // a capture comes from someone else, and warnings print them
			return fmt.Errorf("%.80q contains control characters", f.Name)
		}
	}
	files, err := txtar.FS(archive)
	if err != nil {
		return err
	}
	return os.CopyFS(dir, files)
}
