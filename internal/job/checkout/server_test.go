package checkout

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

// serve gives the repository to git over HTTPS, by handle or, if that is nil, as a Git server does.
// It returns the repository's address.
func (o origin) serve(m *Mirrors, handle http.HandlerFunc) string {
	o.t.Helper()
	server := httptest.NewUnstartedServer(handle)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if handle == nil {
		server.Config.Handler = o.backend()
	}
	server.StartTLS()
	o.t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	ca := filepath.Join(o.t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	m.system = filepath.Join(o.t.TempDir(), "gitconfig")
	config := fmt.Sprintf("[http]\n\tsslCAInfo = %s\n[safe]\n\tdirectory = *\n", ca)
	must.Do(o.t, errors.Join(os.WriteFile(ca, text, 0o644), os.WriteFile(m.system, []byte(config), 0o644)))
	return server.URL + "/gpu-mode/kernelbot"
}

func (o origin) backend() http.Handler {
	o.t.Helper()
	path, err := exec.Command("git", "--exec-path").Output()
	must.Do(o.t, err)
	return &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Stderr: io.Discard, Env: []string{
		"GIT_PROJECT_ROOT=" + filepath.Dir(filepath.Dir(o.dir)), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}}
}

// object writes an object that git itself would refuse, and returns its hash.
func (o origin) object(kind string, content []byte) string {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), "git", "-C", o.dir, "hash-object", "-w", "--literally", "--stdin", "-t", kind)
	cmd.Stdin = strings.NewReader(string(content))
	out, err := cmd.Output()
	must.Do(o.t, err)
	return strings.TrimSpace(string(out))
}

// entry is one of a tree, as git stores it.
func entry(mode, name, hash string) []byte {
	var raw []byte
	_, _ = fmt.Sscanf(hash, "%x", &raw)
	return append([]byte(mode+" "+name+"\x00"), raw...)
}

func commitOf(tree string) []byte {
	return []byte("tree " + tree + "\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n")
}

// point makes a commit of a tree the last of branch main.
func (o origin) point(tree string) string {
	o.t.Helper()
	commit := o.object("commit", commitOf(tree))
	o.put(".git/refs/heads/main", commit+"\n", 0o644)
	return commit
}

func refused(err error, says string) bool {
	no, ok := errors.AsType[*RefusedError](err)
	return ok && strings.Contains(no.Reason, says)
}

// TestNameOfRepository takes no word of its name for what git says.
func TestNameOfRepository(t *testing.T) {
	t.Parallel()
	const repository = "https://github.com/gpu-mode/inflate-COLLISION"
	for says, want := range map[string]bool{"Could not resolve host: github.com": false, "inflate: data stream error": true} {
		err := explain(t.Context(), &gitError{"fetch", "fatal: unable to access '" + repository + "/': " + says + "\n", errors.New("exit status 128")}, repository, "main")
		if refused(err, "damaged") != want {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// TestAnswers tells what is the repository's fault from what is the network's.
func TestAnswers(t *testing.T) {
	t.Parallel()
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
		}
	}
	says := func(lines ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			for _, line := range lines {
				if line != "0000" {
					line = fmt.Sprintf("%04x%s", len(line)+4, line)
				}
				_, _ = io.WriteString(w, line)
			}
		}
	}
	for name, row := range map[string]struct {
		handle  http.HandlerFunc
		refused bool
		says    string
	}{
		"private":          {status(401, "WWW-Authenticate", `Basic realm="x"`), true, "private or does not exist; kbnode fetches public repositories only"},
		"none":             {status(404), true, "private or does not exist"},
		"withdrawn":        {status(451), true, "withdrawn"},
		"a web page":       {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>\n") }, true, "git clone"},
		"forbidden":        {status(403), false, "returned error: 403"},
		"too many":         {status(429), false, "returned error: 429"},
		"away":             {status(503), false, "returned error: 503"},
		"moved":            {status(301, "Location", "https://other.example/x/y.git/info/refs?service=git-upload-pack"), true, "has moved; write its new URL"},
		"a cut connection": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, "fetch https://127.0.0.1"},
		"its own words":    {says("# service=git-upload-pack\n", "0000", "ERR repository is in maintenance"), false, "maintenance"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, m := setUp(t)
			address := o.serve(&m, row.handle)
			_, _, err := checkOut(t, m, Source{Repository: address, Commit: "HEAD", Branch: "main"})
			if err == nil || !strings.Contains(err.Error(), row.says) || refused(err, row.says) != row.refused {
				t.Errorf("%T %v", err, err)
			}
		})
	}
}

// TestHostileObjects refuses commits that git does not make.
func TestHostileObjects(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		tree func(o origin, blob string) []byte
		says string
	}{
		"upwards":        {func(_ origin, blob string) []byte { return entry("100644", "..", blob) }, "is damaged"},
		"a long name":    {func(_ origin, blob string) []byte { return entry("100644", strings.Repeat("a", 300), blob) }, "names of at most"},
		"a missing file": {func(origin, string) []byte { return entry("100644", "a", strings.Repeat("12", 20)) }, "is damaged"},
		"a file as tree": {func(_ origin, blob string) []byte { return entry("40000", "a", blob) }, "is damaged"},
		"a cut tree":     {func(_ origin, blob string) []byte { return entry("100644", "a", blob)[:12] }, "is damaged"},
		"too many trees": {func(o origin, _ string) []byte {
			tree := o.object("tree", nil)
			for range 8 {
				var all []byte
				for i := range 10 {
					all = append(all, entry("40000", fmt.Sprint(i), tree)...)
				}
				tree = o.object("tree", all)
			}
			return entry("40000", "a", tree)
		}, "more than 200000 files and directories"},
		"too deep": {func(o origin, blob string) []byte {
			tree := o.object("tree", entry("100644", "a", blob))
			for range 100 {
				tree = o.object("tree", entry("40000", "a", tree))
			}
			return entry("40000", "a", tree)
		}, "directories"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, m := setUp(t)
			commit := o.point(o.object("tree", row.tree(o, o.object("blob", []byte("x")))))
			address := o.serve(&m, nil)
			for n := range 2 {
				if _, _, err := checkOut(t, m, Source{Repository: address, Commit: commit}); !refused(err, row.says) {
					t.Errorf("try %d: %T %v", n, err, err)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(m.Dir, "*", "objects", "pack", "tmp*")); len(left) > 0 {
				t.Error(left)
			}
		})
	}
}

// TestDamagedRepository refuses a commit that its repository lacks a file of, and keeps the mirror: it still has the
// repository's other commits.
func TestDamagedRepository(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	o.put("a", "1", 0o644)
	good := o.commit()
	fetches, backend := 0, o.backend()
	address := o.serve(&m, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			fetches++
		}
		backend.ServeHTTP(w, r)
	})
	unpacked(t, m, Source{Repository: address, Commit: good})
	bad := o.point(o.object("tree", entry("100644", "a", strings.Repeat("12", 20))))
	for range 2 {
		fetches = 0
		if _, _, err := checkOut(t, m, Source{Repository: address, Commit: bad}); !refused(err, "is damaged") || fetches > 4 { // two fetches of two requests
			t.Errorf("%d requests, %v", fetches, err)
		}
	}
	fetches = 0
	unpacked(t, m, Source{Repository: address, Commit: good})
	if fetches > 0 {
		t.Error("the mirror is gone")
	}
}

// pack collects objects as a server sends them.
type pack struct {
	bytes.Buffer
	n uint32
	z *zlib.Writer
}

func (p *pack) add(kind string, content []byte) (hash string) {
	p.n++
	head, size := map[string]byte{"commit": 1, "tree": 2, "blob": 3}[kind]<<4|byte(len(content)&15), len(content)>>4
	for ; size > 0; size >>= 7 {
		_ = p.WriteByte(head | 0x80)
		head = byte(size & 0x7f)
	}
	_ = p.WriteByte(head)
	if p.z == nil {
		p.z = zlib.NewWriter(p)
	}
	p.z.Reset(p)
	_, _ = p.z.Write(content)
	_ = p.z.Close()
	sum := sha1.Sum(fmt.Appendf(nil, "%s %d\x00%s", kind, len(content), content))
	return hex.EncodeToString(sum[:])
}

func (p *pack) text() string {
	all := append(binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), p.n), p.Bytes()...)
	sum := sha1.Sum(all)
	return string(append(all, sum[:]...))
}

// TestHostilePacks keeps nothing of a commit that git cannot read, or of which a server sends only a
// part.
func TestHostilePacks(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(p *pack) (tree string){
		"a part": func(*pack) string { return strings.Repeat("12", 20) },
		"deep trees": func(p *pack) string {
			tree := p.add("tree", entry("100644", "a", p.add("blob", []byte("x"))))
			for range 70_000 {
				tree = p.add("tree", entry("40000", "a", tree))
			}
			return tree
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p pack
			tree := fill(&p)
			servePack(t, p.add("commit", commitOf(tree)), &p)
		})
	}
}

func servePack(t *testing.T, commit string, p *pack) {
	t.Helper()
	o, m := setUp(t)
	pkt := func(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
	address := o.serve(&m, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		answer := pkt("shallow-info\n") + pkt("shallow "+commit) + "0001" + pkt("packfile\n")
		for part := range slices.Chunk([]byte(p.text()), 60_000) {
			answer += pkt("\x01" + string(part))
		}
		answer += "0000"
		switch {
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			answer = pkt("# service=git-upload-pack\n") + "0000" + pkt("version 2\n") + pkt("ls-refs=unborn\n") + pkt("fetch=shallow\n") + "0000"
		case strings.Contains(string(body), "command=ls-refs"):
			answer = pkt(commit+" refs/heads/main\n") + "0000"
		}
		_, _ = io.WriteString(w, answer)
	})
	for _, s := range []Source{{Commit: commit}, {Commit: commit}, {Commit: "HEAD", Branch: "main"}} {
		s.Repository = address
		if _, _, err := checkOut(t, m, s); !refused(err, "is damaged") {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if packs, bytes := packsOf(m.path(mirrorName(address))); packs > 0 || bytes > 0 {
		t.Errorf("%d packs, %d bytes", packs, bytes)
	}
}

// TestEmpty says what an empty repository lacks.
func TestEmpty(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	address := o.serve(&m, nil)
	for _, commit := range []string{"HEAD", strings.Repeat("12", 20)} {
		if _, _, err := checkOut(t, m, Source{Repository: address, Commit: commit, Branch: "main"}); !refused(err, "has no commit, branch or tag") {
			t.Errorf("%s: %v", commit, err)
		}
	}
}

// TestFormat refuses a repository with hashes of another kind.
func TestFormat(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	must.Do(t, os.RemoveAll(filepath.Join(o.dir, ".git")))
	o.git("init", "-q", "-b", "main", "--object-format=sha256")
	hash := o.commit()
	address := o.serve(&m, nil)
	for commit, says := range map[string]string{"HEAD": "SHA-1", hash: "has no commit"} {
		if _, _, err := checkOut(t, m, Source{Repository: address, Commit: commit, Branch: "main"}); !refused(err, says) {
			t.Errorf("%s: %v", commit, err)
		}
	}
}

// TestCancel ends git and frees the mirror, and the next job is not kept out by what it left.
func TestCancel(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	o.put("a", "1", 0o644)
	hash := o.commit()
	backend, asked := o.backend(), make(chan struct{}, 8)
	hangs := true
	address := o.serve(&m, func(w http.ResponseWriter, r *http.Request) {
		if hangs && r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not see the end
			asked <- struct{}{}
			<-r.Context().Done()
			return
		}
		backend.ServeHTTP(w, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	root, err := os.OpenRoot(t.TempDir())
	must.Do(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := m.Checkout(ctx, Source{Repository: address, Commit: hash}, root, 0, 0)
		done <- err
	}()
	<-asked
	mirror := m.path(mirrorName(address))
	if n := running(t, mirror); n < 2 {
		t.Errorf("%d processes fetch", n)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := running(t, mirror); n > 0 {
		t.Errorf("%d processes of git are left", n)
	}
	hangs = false
	for _, left := range []string{"shallow.lock", "HEAD.lock", "objects/pack/tmp_pack_x", "refs/kbnode/" + hash + ".lock"} { // as git leaves them when it is killed
		file := filepath.Join(mirror, left)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)))
	}
	if _, got, err := checkOut(t, m, Source{Repository: address, Commit: hash}); got != hash || err != nil {
		t.Error(got, err)
	}
}

// TestSlowFetch checks out a commit while another slot's fetch of the repository does not end, by branch or hash, and
// leaves nothing but the mirror that all share.
func TestSlowFetch(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	o.put("a", "1", 0o644)
	slow := o.commit()
	o.put("a", "2", 0o644)
	hash := o.commit()
	backend, asked := o.backend(), make(chan struct{})
	address := o.serve(&m, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), slow) {
			close(asked)
			<-r.Context().Done()
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		backend.ServeHTTP(w, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	root, err := os.OpenRoot(t.TempDir())
	must.Do(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := m.Checkout(ctx, Source{Repository: address, Commit: slow}, root, 0, 0)
		done <- err
	}()
	<-asked
	m.limits.wait = time.Millisecond
	for _, commit := range []string{hash, "HEAD"} {
		dir, got, err := checkOut(t, m, Source{Repository: address, Commit: commit, Branch: "main"})
		must.Do(t, err)
		must.Equal(t, hash, got)
		must.Equal(t, []string{"-rw-r--r-- a 2"}, listing(t, dir))
	}
	must.Equal(t, 0, len(done))
	if _, _, err := checkOut(t, m, Source{Repository: address, Commit: strings.Repeat("12", 20)}); !refused(err, "has no commit") {
		t.Error(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	left, err := filepath.Glob(filepath.Join(m.Dir, "*"))
	must.Do(t, err)
	for _, file := range left {
		if !strings.HasPrefix(filepath.Base(file), mirrorName(address)) {
			t.Errorf("left is %s", file)
		}
	}
}

// TestNotHashes looks up in the mirror only what is a whole hash: all else is the server's to know.
func TestNotHashes(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	o.put("a", "1", 0o644)
	hash := o.commit()
	address := o.serve(&m, nil)
	unpacked(t, m, Source{Repository: address, Commit: hash})
	unpacked(t, m, Source{Repository: address, Commit: "HEAD", Branch: "main"})
	latest := "refs/kbnode/latest"
	for _, commit := range []string{latest, latest + strings.Repeat("^0", 11), hash[:39], hash[:7], hash + "0", hash + "^0", hash + "~0", hash + "\n", "refs/kbnode/" + hash, " " + hash, "latest", "x" + hash[1:]} {
		if _, got, err := checkOut(t, m, Source{Repository: address, Commit: commit}); err == nil {
			t.Errorf("%q is %s", commit, got)
		}
	}
}

// TestMirrorKnowsHashes asks no server for a commit that the mirror has, by a hash as git writes it.
func TestMirrorKnowsHashes(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	hash := o.commit()
	unpacked(t, m, Source{Commit: hash})
	must.Do(t, os.RemoveAll(o.dir))
	unpacked(t, m, Source{Commit: hash})
	if _, got, err := checkOut(t, m, Source{Commit: strings.ToUpper(hash)}); err == nil {
		t.Errorf("not asked for %s", got)
	}
}

// running counts the processes whose working directory is dir.
func running(t *testing.T, dir string) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	must.Do(t, err)
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == dir {
			n++
		}
	}
	return n
}

// TestMirrorMayFail asks a server twice only if the mirror can be at fault.
func TestMirrorMayFail(t *testing.T) {
	t.Parallel()
	for says, want := range map[string]bool{
		"fatal: unable to access '" + address + "/': Could not resolve host: git.example":                   false,
		"fatal: unable to access '" + address + "/': The requested URL returned error: 503":                 false,
		"fatal: couldn't find remote ref gone":                                                              false,
		"fatal: bad shallow line:":                                                                          true,
		"error: file ./objects/pack/pack-1.pack is not a GIT packfile":                                      true,
		"fatal: SHA1 COLLISION FOUND WITH 7a82 !\nfatal: fetch-pack: invalid index-pack output":             true,
		"error: RPC failed; curl 23 Failed writing received data to disk\nfatal: pack has bad object at 12": true,
	} {
		err := fmt.Errorf("fetch: %w", &gitError{"fetch", says + "\n", errors.New("exit status 128")})
		if got := mirrorMayFail(t.Context(), err, address); got != want {
			t.Errorf("%s: %t", says, got)
		}
	}
	if mirrorMayFail(t.Context(), &gitError{"fetch", "", context.DeadlineExceeded}, address) {
		t.Error("a fetch that took too long")
	}
	if mirrorMayFail(t.Context(), nil, address) || mirrorMayFail(t.Context(), errDiskFull, address) {
		t.Error("an error that is not git's")
	}
}
