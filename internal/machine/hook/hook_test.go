package hook

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

// As a program of its own, the test becomes the hook below the directory that this variable names, after it was replaced by
// what the second variable names.
const rootVar, replaceVar = "HOOK_TEST_ROOT", "HOOK_TEST_REPLACE"

const hookFile = "/usr/local/sbin/slot-prolog"

func TestMain(m *testing.M) {
	root := os.Getenv(rootVar)
	if root == "" {
		os.Exit(m.Run())
	}
	f, err := Open(root, hookFile)
	if other := os.Getenv(replaceVar); err == nil && other != "" {
		err = os.Rename(other, filepath.Join(root, hookFile))
	}
	if err == nil {
		err = execFile(f, Environ(testPolicy(), Prolog))
	}
	fmt.Println(err)
	os.Exit(1)
}

func testPolicy() plan.JobPolicy {
	return plan.JobPolicy{
		Slot: 3, Name: "gpu3", CPUs: "2-3,10-11", Hooks: &plan.Hooks{Prolog: hookFile, Node: "box"},
		GPUs: []plan.PolicyGPU{
			{UUID: "GPU-a", PCI: "0000:1a:00.0", Instance: "MIG-1"}, {UUID: "GPU-a", PCI: "0000:1a:00.0", Instance: "MIG-2"}, {UUID: "GPU-b", PCI: "0000:1b:00.0"},
		},
		Env: []string{"SECRET=of the slot"},
	}
}

// tree makes a hook with this text below a root of its own.
func tree(t *testing.T, text string) (root, file string) {
	t.Helper()
	root = t.TempDir()
	file = filepath.Join(root, hookFile)
	must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.Program(t, file, text)
	return root, file
}

// become runs the hook below a root, in the state that the variables say, and returns what it printed.
func become(t *testing.T, root string, vars ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "an argument")
	cmd.Env = append(append(os.Environ(), "BUILDKITE_JOB_ID=0190", rootVar+"="+root), vars...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestExec runs a script with what a hook gets, and nothing else.
func TestExec(t *testing.T) {
	t.Parallel()
	root, _ := tree(t, "#!/bin/bash\nread x && echo \"input $x\"\necho \"$# arguments in $(pwd)\"; env\nexit 3\n")
	out, err := become(t, root)
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != 3 {
		t.Errorf("it ended with %v", err)
	}
	first, rest, _ := strings.Cut(out, "\n")
	must.Equal(t, "0 arguments in /", first)
	got := slices.DeleteFunc(strings.Fields(rest), func(v string) bool { // the shell's
		return strings.HasPrefix(v, "SHLVL=") || strings.HasPrefix(v, "_=") || strings.HasPrefix(v, "PWD=") || strings.HasPrefix(v, "OLDPWD=")
	})
	vars := Environ(testPolicy(), Prolog)
	must.Equal(t, slices.Sorted(slices.Values(vars)), slices.Sorted(slices.Values(got)))
	must.Equal(t, `PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C.UTF-8
KBNODE_HOOK=prolog
KBNODE_NODE=box
KBNODE_SLOT=3
KBNODE_SLOT_NAME=gpu3
KBNODE_CPUS=2-3,10-11
KBNODE_GPUS=GPU-a,GPU-b
KBNODE_GPU_PCI=0000:1a:00.0,0000:1b:00.0
KBNODE_GPU_INSTANCES=MIG-1,MIG-2`, strings.Join(vars, "\n"))
}

// TestReplaced runs what was checked, whatever has its name by then.
func TestReplaced(t *testing.T) {
	t.Parallel()
	root, _ := tree(t, "#!/bin/sh\necho checked\n")
	other := filepath.Join(t.TempDir(), "other")
	must.Program(t, other, "#!/bin/sh\necho replaced\n")
	out, err := become(t, root, replaceVar+"="+other)
	must.Do(t, err)
	must.Equal(t, "checked\n", out)
}

// TestExecRefused says why the kernel does not execute a file.
func TestExecRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"echo no first line\n":   hookFile + " is not a program; begin a script with a line such as #!/bin/sh\n",
		"":                       hookFile + " is not a program; begin a script with a line such as #!/bin/sh\n",
		"#!/nowhere/python3\n\n": "the interpreter or loader that " + hookFile + " names is missing; install it, or name another\n",
	} {
		root, _ := tree(t, text)
		out, err := become(t, root)
		if err == nil || out != want {
			t.Errorf("%q: %v, %s", text, err, out)
		}
	}
}

// TestOpen refuses what others than root could change, and what is no program.
func TestOpen(t *testing.T) {
	t.Parallel()
	chmod := func(name string, mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, root string) { must.Do(t, os.Chmod(filepath.Join(root, name), mode)) }
	}
	// instead puts something else in the place of a part of the path.
	instead := func(name string, put func(file string) error) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			file := filepath.Join(root, name)
			must.Do(t, errors.Join(os.Rename(file, file+".was"), put(file)))
		}
	}
	for name, row := range map[string]struct {
		change func(t *testing.T, root string)
		why    string
		fix    string
	}{
		"good":                     {func(*testing.T, string) {}, "", ""},
		"closed to others":         {chmod(hookFile, 0o700), "", ""},
		"writable by its group":    {chmod(hookFile, 0o775), hookFile + " has mode 0775, so others than root can change it", "chmod go-w " + hookFile},
		"writable by all":          {chmod(hookFile, 0o757), hookFile + " has mode 0757", "chmod go-w " + hookFile},
		"a parent of its group":    {chmod("/usr/local", 0o775), "/usr/local has mode 0775, so others than root can change it", "chmod go-w /usr/local"},
		"a sticky parent":          {chmod("/usr/local/sbin", 0o777|os.ModeSticky), "/usr/local/sbin has mode 1777", "chmod go-w /usr/local/sbin"},
		"the root of all":          {chmod("/", 0o777), "/ has mode 0777", "chmod go-w /"},
		"not executable":           {chmod(hookFile, 0o644), hookFile + " is not executable", "chmod u+x " + hookFile},
		"executable for others":    {chmod(hookFile, 0o655), hookFile + " is not executable", "chmod u+x " + hookFile},
		"absent":                   {instead(hookFile, func(string) error { return nil }), hookFile + " does not exist; put the program there", ""},
		"an absent directory":      {instead("/usr/local", func(string) error { return nil }), "/usr/local does not exist", ""},
		"a link":                   {instead(hookFile, func(file string) error { return os.Symlink(file+".was", file) }), hookFile + " is a symbolic link, which is not followed; write the path that it leads to, \"", ""},
		"a link to nothing":        {instead(hookFile, func(file string) error { return os.Symlink("/nowhere\x1b", file) }), `leads to, "/nowhere\x1b"`, ""},
		"a directory by a link":    {instead("/usr/local", func(file string) error { return os.Symlink("local.was", file) }), `/usr/local is a symbolic link, which is not followed; write the path that it leads to, "local.was"`, ""},
		"a long link":              {instead(hookFile, func(file string) error { return os.Symlink(strings.Repeat("a", 300), file) }), "write the path that it leads to", ""},
		"a directory":              {instead(hookFile, func(file string) error { return os.Mkdir(file, 0o755) }), hookFile + " is not a regular file", ""},
		"a pipe that no one reads": {instead(hookFile, func(file string) error { return unix.Mkfifo(file, 0o755) }), hookFile + " is not a regular file", ""},
		"a file as a directory":    {instead("/usr/local", func(file string) error { return os.WriteFile(file, nil, 0o755) }), "/usr/local is not a directory", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, _ := tree(t, "#!/bin/sh\n")
			row.change(t, root)
			f, err := Open(root, hookFile)
			if err == nil {
				must.Do(t, f.Close())
			}
			must.Err(t, err, row.why)
			file, _ := errors.AsType[*FileError](err)
			if file == nil && row.why != "" {
				t.Fatalf("%T: %v", err, err)
			}
			if row.fix != "" {
				must.Equal(t, row.fix, file.Fix)
				must.Contain(t, err.Error(), "; type sudo "+row.fix)
				must.Do(t, exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(row.fix, " /", " "+root+"/")).Run())
				f, err := Open(root, hookFile)
				must.Do(t, err)
				must.Do(t, f.Close())
			}
		})
	}
}

// TestOpenOwner refuses what another user owns.
func TestOpenOwner(t *testing.T) {
	t.Parallel()
	must.Root(t, "changes owners")
	for _, name := range []string{hookFile, "/usr/local"} {
		root, _ := tree(t, "#!/bin/sh\n")
		must.Do(t, os.Chown(filepath.Join(root, name), 1000, 0))
		_, err := Open(root, hookFile)
		must.Err(t, err, name+" belongs to user 1000, not to root; type sudo chown root "+name)
		f, err := open(root, hookFile, 1000)
		must.Do(t, err)
		must.Do(t, f.Close())
	}
}

// TestOwner lets no user pass for root on the machine itself.
func TestOwner(t *testing.T) {
	t.Parallel()
	must.Equal(t, 0, owner("/"))
	must.Equal(t, os.Geteuid(), owner(t.TempDir()))
}

// TestOpenNoexec refuses a program that nothing could execute.
func TestOpenNoexec(t *testing.T) {
	t.Parallel()
	must.Root(t, "mounts")
	root, file := tree(t, "#!/bin/sh\n")
	dir := filepath.Dir(file)
	if err := unix.Mount("hook", dir, "tmpfs", unix.MS_NOEXEC, "mode=755,size=1m"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	must.Program(t, file, "#!/bin/sh\n")
	_, err := Open(root, hookFile)
	must.Err(t, err, hookFile+" is on a file system that is mounted noexec")
}

func TestProblems(t *testing.T) {
	t.Parallel()
	root, file := tree(t, "#!/bin/sh\n")
	for name, row := range map[string]struct {
		job  config.Job
		want []string
	}{
		"none": {config.Job{}, nil},
		"good": {config.Job{Prolog: hookFile}, nil},
		"both, as they run": {config.Job{Prolog: "/usr/p", Epilog: "/usr/e"}, []string{
			"job.prolog: /usr/p does not exist; put the program there, or name another", "job.epilog: /usr/e does not exist; put the program there, or name another",
		}},
		"one of two": {config.Job{Prolog: hookFile, Epilog: hookFile + "/x"}, []string{"job.epilog: " + hookFile + " is not a directory; name a program by its path"}},
	} {
		var got []string
		for _, p := range Problems(root, row.job) {
			got = append(got, p.String())
		}
		t.Log(name)
		must.Equal(t, row.want, got)
	}
	if os.Geteuid() != 0 { // root may look at everything
		must.Do(t, os.Chmod(filepath.Dir(file), 0o600))
		must.Equal(t, 0, len(Problems(root, config.Job{Prolog: hookFile})))
		must.Do(t, os.Chmod(filepath.Dir(file), 0o700)) // to be removed
	}
}

// TestDocumented runs the program of the page with a driver's tool that notes its calls, twice, as an epilog may be.
func TestDocumented(t *testing.T) {
	t.Parallel()
	page := must.Read(t, "../../../docs/operations.md")
	_, rest, _ := strings.Cut(page, "```sh\n")
	script, _, _ := strings.Cut(rest, "```\n")
	must.Contain(t, script, "#!/bin/sh\n", "$KBNODE_HOOK")
	dir := t.TempDir()
	must.Program(t, filepath.Join(dir, "nvidia-smi"), "#!/bin/sh\necho \"$*\" >>"+dir+"/calls\n")
	must.Program(t, filepath.Join(dir, "hook"), script)
	divided, whole := testPolicy(), testPolicy()
	for i := range whole.GPUs {
		whole.GPUs[i].Instance = ""
	}
	for _, p := range []plan.JobPolicy{divided, whole} { // of one that is divided, it would change other slots' GPU
		for _, name := range []string{Prolog, Epilog, Epilog} {
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "hook"))
			cmd.Env = append(Environ(p, name), "PATH="+dir+":/usr/bin:/bin")
			out, err := cmd.CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("%s: %v: %s", name, err, out)
			}
		}
	}
	const reset = "-i GPU-a,GPU-b --reset-gpu-clocks\n"
	must.Equal(t, "-i GPU-a,GPU-b --lock-gpu-clocks=1410\n"+reset+reset, must.Read(t, filepath.Join(dir, "calls")))
	for _, v := range Environ(testPolicy(), Prolog) {
		name, _, _ := strings.Cut(v, "=")
		must.Contain(t, page, "`"+name+"`")
	}
}
