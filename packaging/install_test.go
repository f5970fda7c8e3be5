// Package packaging_test tries the scripts that packages and releases carry.
package packaging_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/test/must"
)

// archive is a release's, with a kbnode that says its version.
func archive(t *testing.T, name, version string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	text := "#!/bin/sh\n[ \"$1\" = version ] && echo kbnode " + version + "\n"
	must.Do(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}))
	_, _ = w.Write([]byte(text))
	must.Do(t, w.Close())
	must.Do(t, z.Close())
	return b.Bytes()
}

func line(name string, text []byte) string { return fmt.Sprintf("%x  %s\n", sha256.Sum256(text), name) }

func TestInstall(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("no release for this architecture")
	}
	file := func(version string) string { return "kbnode_" + version + "_linux_" + runtime.GOARCH + ".tar.gz" }
	one, two := archive(t, "kbnode", "1.2.3"), archive(t, "kbnode", "1.3.0")
	packed := map[string][]byte{file("1.2.3"): one, file("1.3.0"): two}
	sums := line("kbnode_1.2.3_amd64.deb", nil) + line(file("1.2.3"), one) + line("kbnode_1.2.3_linux_riscv64.tar.gz", nil)
	both := sums + line(file("1.3.0"), two)
	tampered := bytes.Clone(one)
	tampered[len(tampered)-9] ^= 1
	empty := archive(t, "other", "1.2.3")
	for _, tt := range []struct {
		name, sums string
		files      map[string][]byte
		cut        string // file that ends early
		args       []string
		says, now  string // version that is installed afterward
	}{
		{name: "the latest", sums: sums, files: packed, says: "is kbnode 1.2.3", now: "1.2.3"},
		{name: "a version of two", sums: both, files: packed, args: []string{"v1.3.0"}, says: "is kbnode 1.3.0", now: "1.3.0"},
		{name: "binary mode", sums: strings.ReplaceAll(sums, "  ", " *"), files: packed, says: "is kbnode 1.2.3", now: "1.2.3"},
		{name: "one of two", sums: both, files: packed, says: "lists several versions; choose one: KBNODE_FROM=http://"},
		{name: "tampered", sums: sums, files: map[string][]byte{file("1.2.3"): tampered}, says: "does not match SHA256SUMS"},
		{name: "no line", sums: line("kbnode_1.2.3_amd64.deb", nil), files: packed, says: "lists no kbnode for " + runtime.GOARCH},
		{name: "no line of that version", sums: sums, files: packed, args: []string{"9.9.9"}, says: "lists no kbnode 9.9.9"},
		{name: "a short checksum", sums: sums[:65+24] + "ab  " + file("1.2.3") + "\n", files: packed, says: "lists no kbnode"},
		{name: "a path for a name", sums: line("../"+file("1.2.3"), one), files: packed, says: "lists no kbnode"},
		{name: "cut off", sums: sums, files: packed, cut: file("1.2.3"), says: "cannot fetch"},
		{name: "checksums cut off", sums: sums, files: packed, cut: "SHA256SUMS", says: "cannot fetch"},
		{name: "no archive", sums: sums, says: "cannot fetch"},
		{name: "not in it", sums: line(file("1.2.3"), empty), files: map[string][]byte{file("1.2.3"): empty}, says: "does not contain kbnode"},
		{name: "no version", sums: sums, files: packed, args: []string{"1.2.3/../.."}, says: "is not a version"},
		{name: "a flag", sums: sums, files: packed, args: []string{"--help"}, says: "is not a version"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				name := strings.TrimPrefix(r.URL.Path, "/")
				text, ok := tt.files[name]
				if name == "SHA256SUMS" {
					text, ok = []byte(tt.sums), true
				}
				if !ok {
					http.NotFound(w, r)
					return
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(text)))
				if name == tt.cut {
					text = text[:len(text)/2]
				}
				_, _ = w.Write(text)
			}))
			defer server.Close()
			to := t.TempDir()
			before := "#!/bin/sh\necho before\n"
			must.Program(t, filepath.Join(to, "kbnode"), before)
			out, err := install(t, "install.sh", server.URL, to, tt.args...)
			if !strings.Contains(out, tt.says) || (err == nil) != (tt.now != "") {
				t.Errorf("%v, and says\n%s\nwant %q", err, out, tt.says)
			}
			if advised := strings.Contains(out, to+` is not in PATH; type export PATH="`+to+`:$PATH"`); advised != (tt.now != "") {
				t.Errorf("of PATH it says\n%s", out)
			}
			text := must.Read(t, filepath.Join(to, "kbnode"))
			if tt.now == "" && text != before || !strings.Contains(text, tt.now) {
				t.Errorf("there lies\n%s", text)
			}
			if left, _ := os.ReadDir(to); len(left) != 1 {
				t.Errorf("left behind: %v", left)
			}
			if fi, err := os.Stat(filepath.Join(to, "kbnode")); err != nil || fi.Mode() != 0o755 {
				t.Errorf("mode %v, %v", fi.Mode(), err)
			}
		})
	}
}

func install(t *testing.T, script, from, to string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), "KBNODE_FROM="+from, "KBNODE_TO="+to, "TMPDIR="+t.TempDir(), "no_proxy=*")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestInstallWithWget has no curl, and a mirror that sends more than any list of checksums has.
func TestInstallWithWget(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for _, name := range []string{"sh", "wget", "uname", "mktemp", "rm", "awk"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		must.Do(t, os.Symlink(program, filepath.Join(bin, name)))
	}
	much := bytes.Repeat([]byte("\n"), 64<<20)
	sent := make(chan int, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n, _ := w.Write(much)
		sent <- n
	}))
	defer server.Close()
	cmd := exec.CommandContext(t.Context(), "sh", "install.sh")
	cmd.Env = []string{"PATH=" + bin, "KBNODE_FROM=" + server.URL, "KBNODE_TO=" + t.TempDir(), "TMPDIR=" + t.TempDir()}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "cannot fetch "+server.URL+"/SHA256SUMS; nothing was changed") {
		t.Errorf("%v: %s", err, out)
	}
	if n := <-sent; n == len(much) {
		t.Errorf("all %d bytes were read", n)
	}
}

// TestInstallAdvice checks that what a refusal says to type keeps the variables.
func TestInstallAdvice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := must.Write(t, dir, "install.sh", must.Read(t, "install.sh"))
	must.Do(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(script, 0o644))) // for another user
	closed, missing := filepath.Join(dir, "closed"), filepath.Join(dir, "missing")
	must.Do(t, os.Mkdir(closed, 0o555))
	for _, tt := range []struct{ from, to, version, says string }{
		{"", closed, "v1.2.3", "cannot write to " + closed + "; type sudo KBNODE_TO=" + closed + " sh " + script + " 1.2.3, or"},
		{"http://h/m", closed, "", "; type sudo KBNODE_FROM=http://h/m KBNODE_TO=" + closed + " sh " + script + ", or"},
		{"http://h/m", missing, "", missing + " is not a directory; type mkdir -p " + missing + "\n"},
		{"", script, "", script + " is not a directory"},
	} {
		cmd := exec.CommandContext(t.Context(), "sh", script, tt.version)
		if tt.version == "" {
			cmd.Args = cmd.Args[:2]
		}
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "KBNODE_FROM="+tt.from, "KBNODE_TO="+tt.to)
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), tt.says) {
			t.Errorf("%v: %s, want %q", err, out, tt.says)
		}
	}
}

// TestFirstBoot runs the script of cloud-init/user-data.yaml on a machine that becomes ready only at the n-th try.
func TestFirstBoot(t *testing.T) {
	t.Parallel()
	var data struct {
		Files []struct{ Path, Content string } `yaml:"write_files"`
	}
	must.Do(t, yaml.Unmarshal([]byte(must.Read(t, "cloud-init/user-data.yaml")), &data))
	script := data.Files[len(data.Files)-1]
	must.Equal(t, "/usr/local/sbin/kbnode-first-boot", script.Path)
	const enabled, install, doctor = "systemctl enable kbnode-install.service\n", "kbnode install\n", "kbnode doctor --timeout 10m\n"
	for _, tt := range []struct {
		name, artifact string
		ready          int // the try; 0 is never, and below 0 the try ends with 2
		did            string
	}{
		{"a package", "kbnode_1.2.3_amd64.deb", 1, enabled + install + doctor},
		{"a package before Docker is ready", "kbnode_1.2.3_amd64.deb", 3, enabled + strings.Repeat(install, 3) + doctor},
		{"the binary before Docker is ready", "kbnode", 2, strings.Repeat(install, 2) + doctor},
		{"never ready", "kbnode-1.2.3-1.x86_64.rpm", 0, enabled + strings.Repeat(install, 30)},
		{"a refused token", "kbnode_1.2.3_amd64.deb", -2, enabled + strings.Repeat(install, 2)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root, bin := t.TempDir(), t.TempDir()
			record := "#!/bin/sh\necho \"${0##*/} $*\" >>" + root + "/did\n"
			for name, text := range map[string]string{
				"kbnode": record + "[ \"$1\" = install ] || exit 0; n=$(grep -c install$ " + root + "/did); [ -$n != " + fmt.Sprint(tt.ready) + " ] || exit 2; [ $n = " + fmt.Sprint(tt.ready) + " ]\n",
				// A oneshot unit whose first try fails ends the job that systemctl waits for.
				"systemctl": record + "case $* in *--now*) exit 1 ;; esac\n",
				"curl":      "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\nprintf '{\"data\": {\"data\": {\"token\": \"x\"}}}' >\"$2\"\n",
				"sha256sum": "#!/bin/sh\n", "apt-get": "#!/bin/sh\n", "dnf": "#!/bin/sh\n", "sleep": "#!/bin/sh\n", "python3": "#!/bin/sh\n",
			} {
				must.Program(t, filepath.Join(bin, name), text)
			}
			text := regexp.MustCompile("kbnode=https.*").ReplaceAllLiteralString(script.Content, "kbnode=https://mirror.example/"+tt.artifact)
			text = strings.NewReplacer("/etc/", root+"/etc/", "/usr/local/", root+"/").Replace(text)
			must.Do(t, os.Mkdir(filepath.Join(root, "bin"), 0o755))
			cmd := exec.CommandContext(t.Context(), "sh", "-c", text)
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+t.TempDir())
			if out, err := cmd.CombinedOutput(); (err == nil) != (tt.ready > 0) {
				t.Errorf("%v: %s", err, out)
			}
			must.Equal(t, tt.did, must.Read(t, filepath.Join(root, "did")))
		})
	}
}

// TestHalfScript runs what a pipe into a shell would leave of a cut download.
func TestHalfScript(t *testing.T) {
	t.Parallel()
	whole := must.Read(t, "install.sh")
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = true
		http.NotFound(w, r)
	}))
	defer server.Close()
	last := strings.LastIndex(whole, "main ")
	for end := 0; end <= last; end += 61 {
		dir := t.TempDir()
		must.Write(t, dir, "half.sh", whole[:end])
		to := t.TempDir()
		out, _ := install(t, filepath.Join(dir, "half.sh"), server.URL, to)
		if left, err := os.ReadDir(to); len(left) > 0 || err != nil || asked {
			t.Fatalf("%d bytes of the script did something:\n%s", end, out)
		}
	}
}

// node is a root directory with these files.
func node(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, f := range files {
		name, text, _ := strings.Cut(f, ":")
		must.Write(t, root, name, text)
	}
	return root
}

// TestMaintainerScripts runs each with what dpkg and rpm give it, twice. Only a removal
// has anything to ask of systemd, for whose root these are not.
func TestMaintainerScripts(t *testing.T) {
	t.Parallel()
	const units = "etc/systemd/system/"
	daemon := units + "kbnode.service:[Service]\nExecStart=/usr/bin/kbnode daemon\n"
	jobs := units + "kbnode-job-gpu3@.service:[Service]\nExecStart=/usr/bin/kbnode run-job --slot 3\n"
	agent := units + "buildkite-agent-gpu3.service:[Service]\nExecStartPre=+/usr/bin/kbnode clear --slot 3\nExecStart=/usr/local/libexec/kbnode/buildkite-agent start\n"
	local := units + "kbnode.service:[Service]\nExecStart=/usr/local/bin/kbnode daemon\n"
	config, state := "etc/kbnode/config.yaml:queue: x\n", "var/lib/kbnode/events.jsonl:\n"
	other := "etc/buildkite-agent/token:secret"
	for _, tt := range []struct {
		script, args string
		files        []string
		says         string // "" is nothing
		refuses      bool
		left         []string // nil is all
	}{
		{script: "prerm", args: "remove", files: []string{daemon}, says: "sudo kbnode uninstall", refuses: true},
		{script: "prerm", args: "0", files: []string{daemon}, says: "sudo kbnode uninstall", refuses: true},
		{script: "prerm", args: "remove in-favour other 1.0", files: []string{jobs}, says: "sudo kbnode uninstall", refuses: true},
		{script: "prerm", args: "remove", files: []string{agent}, says: "sudo kbnode uninstall", refuses: true},
		{script: "prerm", args: "remove", files: []string{local}},
		{script: "prerm", args: "remove"},
		{script: "prerm", args: "upgrade 1.3.0", files: []string{daemon}},
		{script: "prerm", args: "1", files: []string{daemon}},
		{script: "prerm", args: "failed-upgrade 1.2.3 1.3.0", files: []string{daemon}},
		{script: "prerm", args: "deconfigure in-favour x 1", files: []string{daemon}},
		{script: "prerm", args: "", files: []string{daemon}},
		{script: "postinst", args: "configure", says: "sudo kbnode install --queue QUEUE\n"},
		{script: "postinst", args: "1", says: "sudo kbnode install --queue QUEUE\n"},
		{script: "postinst", args: "configure", files: []string{config}, says: "sudo kbnode install\n"},
		{script: "postinst", args: "configure", files: []string{daemon}},
		{script: "postinst", args: "1", files: []string{daemon}},
		{script: "postinst", args: "configure 1.2.3"},
		{script: "postinst", args: "2"},
		{script: "postinst", args: "configure 1.2.3", files: []string{daemon}},
		{script: "postinst", args: "configure", files: []string{"usr/local/bin/kbnode:"}, says: "sudo /usr/bin/kbnode install"},
		{script: "postinst", args: "2", files: []string{"usr/local/bin/kbnode:"}, says: "sudo /usr/bin/kbnode install"},
		{script: "postinst", args: "abort-remove", files: []string{"usr/local/bin/kbnode:"}},
		{script: "postrm", args: "remove", files: []string{config, state}},
		{script: "postrm", args: "upgrade 1.3.0", files: []string{config, state}},
		{script: "postrm", args: "0", files: []string{config, state}},
		{script: "postrm", args: "purge", files: []string{config, state, other}, left: []string{"etc/buildkite-agent/token"}},
		{script: "postrm", args: "purge"},
		{script: "postrm", args: "purge", files: []string{config, state, local}, says: "another kbnode has slots here"},
	} {
		t.Run(tt.script+" "+tt.args, func(t *testing.T) {
			t.Parallel()
			root, bin := node(t, tt.files...), t.TempDir()
			stub := "#!/bin/sh\necho \"$*\" >>" + bin + "/asked\n"
			must.Program(t, filepath.Join(bin, "systemctl"), stub)
			for range 2 {
				cmd := exec.CommandContext(t.Context(), "sh", append([]string{"scripts/" + tt.script}, strings.Fields(tt.args)...)...)
				cmd.Env = append(os.Environ(), "DPKG_ROOT="+root, "PATH="+bin+":"+os.Getenv("PATH"))
				out, err := cmd.CombinedOutput()
				if (err != nil) != tt.refuses || (tt.says == "") != (len(out) == 0) || !strings.Contains(string(out), tt.says) {
					t.Errorf("%v, and says\n%s\nwant %q", err, out, tt.says)
				}
			}
			what, _, _ := strings.Cut(tt.args, " ")
			removed := tt.script == "prerm" && !tt.refuses && (what == "remove" || what == "0")
			asked, _ := os.ReadFile(filepath.Join(bin, "asked"))
			if disable := "--quiet --no-reload --root=" + root + " disable kbnode-install.service\n"; removed && string(asked) != disable+disable || !removed && len(asked) > 0 {
				t.Errorf("systemd is asked to\n%s", asked)
			}
			want := tt.left
			if want == nil {
				for _, f := range tt.files {
					name, _, _ := strings.Cut(f, ":")
					want = append(want, name)
				}
			}
			n := 0
			_ = filepath.WalkDir(root, func(_ string, d fs.DirEntry, _ error) error {
				if !d.IsDir() {
					n++
				}
				return nil
			})
			for _, name := range want {
				if _, err := os.Stat(filepath.Join(root, name)); err != nil {
					t.Error(err)
				}
			}
			if n != len(want) {
				t.Errorf("%d files are left, want %q", n, want)
			}
			if _, err := os.Stat(filepath.Join(root, "etc/kbnode")); tt.left != nil && err == nil {
				t.Error("an empty directory is left")
			}
		})
	}
}
