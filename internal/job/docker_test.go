package job_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/go-units"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/test/must"
)

// recorded is a step and what docker-buildkite-plugin v5.11.0 asked of docker for it.
type recorded struct {
	Name     string
	Settings map[string]any
	Command  string
	Env      map[string]string
	Gold     struct {
		Exit   int
		Calls  [][]string
		Stderr []string
	}
}

func cases(t *testing.T) (list []recorded) {
	t.Helper()
	text, err := os.ReadFile("testdata/docker-plugin.json")
	must.Do(t, err)
	if err := json.Unmarshal(text, &list); err != nil || len(list) != 86 {
		t.Fatalf("%d cases, %v", len(list), err)
	}
	return list
}

// build is a job with these variables besides those of every build.
func build(more map[string]string) job.Input {
	sent := map[string]string{
		"BUILDKITE": "true", "CI": "true", "BUILDKITE_JOB_ID": "0190-job", "BUILDKITE_BUILD_ID": "0190-build",
		"BUILDKITE_PIPELINE_SLUG": "kernelbot", "BUILDKITE_PIPELINE_NAME": "kernelbot", "BUILDKITE_BUILD_NUMBER": "7",
		"BUILDKITE_LABEL": "evaluate", "BUILDKITE_STEP_KEY": "", "BUILDKITE_AGENT_NAME": "node-gpu0", "BUILDKITE_AGENT_ID": "0190-agent",
		"BUILDKITE_REPO": "https://github.com/gpu-mode/kernelbot", "BUILDKITE_COMMIT": "HEAD", "BUILDKITE_BRANCH": "main",
		"BUILDKITE_TIMEOUT": "false",
	}
	maps.Copy(sent, more)
	in := job.Input{Env: maps.Clone(sent), Repositories: []string{`^(https://github\.com/|git@github\.com:)gpu-mode/[A-Za-z0-9._-]+$`}}
	for _, name := range slices.Sorted(maps.Keys(sent)) {
		in.Sent = append(in.Sent, job.Var{Name: name, Value: sent[name]})
	}
	// What the agent adds, and what must never reach a job.
	maps.Copy(in.Env, map[string]string{
		"BUILDKITE_AGENT_ACCESS_TOKEN": "secret", "PATH": "/usr/bin", "NVIDIA_VISIBLE_DEVICES": "GPU-x", "CUDA_VISIBLE_DEVICES": "GPU-x",
		"BUILDKITE_REDACTED_VARS": "*_TOKEN,*_PASSWORD",
	})
	return in
}

func plugin(t *testing.T, settings any) string {
	t.Helper()
	text, err := json.Marshal([]any{map[string]any{"github.com/buildkite-plugins/docker-buildkite-plugin#v5.11.0": settings}})
	must.Do(t, err)
	return string(text)
}

// container is what both a spec and docker's arguments say.
type container struct {
	Image, Workdir, User, Network, Memory, Shm, Pull string
	Entrypoint                                       *string
	Args, Mounts, Tmpfs, Groups, Drop, Ulimits       []string
	Env                                              map[string]string
	TTY, Stdin, Init                                 bool
}

// exceptions are the cases that a spec means differently, with the reason that docs/pipelines.md gives.
// The value is the field of a refusal.
var exceptions = map[string]string{
	// refused by the option's row in the table
	"volume-absolute": "volumes", "volume-expand": "volumes", "volume-not-expanded": "volumes",
	"network-host": "network", "ipc": "ipc", "image-not-expanded": "image",
	// what the hook passes to docker makes no sense
	"env-list-gap": "environment", "image-missing": "image", "unknown-setting": "colour",
	// the hook refuses them as well
	"command-both": "command", "user-and-propagate": "user", "settings-of-wrong-type": "tty", "mount-ssh-agent": "mount-ssh-agent",
}

// notRecorded are variables of every job that the environment file of the recordings did not have.
var notRecorded = []string{"BUILDKITE_BUILD_ID", "BUILDKITE_REPO", "BUILDKITE_BRANCH", "BUILDKITE_TIMEOUT", "BUILDKITE_PLUGINS"}

// TestAsTheDockerPlugin tests that a spec means what the real plugin asks of docker.
func TestAsTheDockerPlugin(t *testing.T) {
	t.Parallel()
	verdicts := map[string]job.Verdict{}
	for _, o := range job.Options {
		for name := range strings.FieldsSeq(o.Names) {
			verdicts[name] = o.Verdict
		}
	}
	for _, c := range cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			vars := maps.Clone(c.Env)
			if vars == nil {
				vars = map[string]string{}
			}
			vars["BUILDKITE_COMMAND"], vars["BUILDKITE_PLUGINS"] = c.Command, plugin(t, c.Settings)
			in := build(vars)
			in.Sent = slices.DeleteFunc(in.Sent, func(v job.Var) bool { return slices.Contains(notRecorded, v.Name) })
			for _, name := range notRecorded[:3] {
				delete(in.Env, name)
			}
			spec, err := job.Read(in)
			if err != nil {
				r, ok := errors.AsType[*job.Refusal](err)
				if !ok {
					t.Fatal(err)
				}
				want, excepted := exceptions[c.Name]
				if excepted && r.Field != want || !excepted && verdicts[r.Field] != job.Refused {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if _, excepted := exceptions[c.Name]; excepted || c.Gold.Exit != 0 {
				t.Fatalf("not refused, although the plugin says %q", c.Gold.Stderr)
			}
			must.Equal(t, fromDocker(t, c.Gold.Calls, in.Env), fromSpec(t, spec))
		})
	}
	for name := range exceptions {
		if !slices.ContainsFunc(cases(t), func(c recorded) bool { return c.Name == name }) {
			t.Errorf("%s is no case", name)
		}
	}
}

func fromSpec(t *testing.T, s *job.Spec) container {
	t.Helper()
	c := container{
		Image: s.Image, Workdir: s.Workdir, User: s.User, Network: s.Network, Pull: s.Pull, Entrypoint: s.Entrypoint,
		Args: s.Command, Groups: s.Groups, Drop: s.DropCaps, Env: map[string]string{}, TTY: s.TTY, Stdin: s.Interactive, Init: s.Init,
	}
	if s.SlotUser {
		c.User = "own"
	}
	for _, v := range s.Env {
		c.Env[v.Name] = v.Value
	}
	for _, m := range s.Mounts {
		c.Mounts = append(c.Mounts, m.Source+":"+m.Target+":"+strconv.FormatBool(m.ReadOnly))
	}
	for _, m := range s.Tmpfs {
		c.Tmpfs = append(c.Tmpfs, strings.TrimSuffix(m.Target+":"+strings.Join(m.Options, ","), ":"))
	}
	for _, u := range s.Ulimits {
		c.Ulimits = append(c.Ulimits, u.Name+"="+strconv.FormatInt(u.Soft, 10)+":"+strconv.FormatInt(u.Hard, 10))
	}
	c.Memory, c.Shm = strconv.FormatInt(s.Memory, 10), strconv.FormatInt(s.ShmSize, 10)
	return c
}

// fromDocker reads the arguments of docker. It leaves out what the slot decides.
func fromDocker(t *testing.T, calls [][]string, env map[string]string) container {
	t.Helper()
	c := container{Network: "bridge", Pull: "missing", Memory: "0", Shm: "0", Args: []string{}, Groups: []string{}, Drop: []string{}, Env: map[string]string{}}
	size := func(s string) string {
		n, err := units.RAMInBytes(s)
		must.Do(t, err)
		return strconv.FormatInt(n, 10)
	}
	for _, call := range calls {
		if call[0] == "pull" {
			c.Pull = "always"
		}
		if call[0] != "run" {
			continue
		}
		args := call[1:]
		for len(args) > 0 && strings.HasPrefix(args[0], "-") {
			flag, value, joined := strings.Cut(args[0], "=")
			args = args[1:]
			switch flag {
			case "-t":
				c.TTY = true
				continue
			case "-i":
				c.Stdin = true
				continue
			case "--init":
				c.Init = true
				continue
			case "--rm":
				continue
			}
			if !joined {
				value, args = args[0], args[1:]
			}
			switch flag {
			case "--volume":
				value = strings.Replace(value, "<CHECKOUT>//", "<CHECKOUT>/", 1)
				value, ro := strings.CutSuffix(value, ":ro")
				source, target, _ := strings.Cut(strings.TrimSuffix(value, ":rw"), ":")
				switch rest, inside := strings.CutPrefix(source, "<CHECKOUT>"); {
				case strings.HasPrefix(source, "<BIN>"): // the program has no mount of its own
					continue
				case strings.HasPrefix(source, "/var/lib/buildkite-agent/cache"):
					source = "" // an empty directory
				case inside && rest == "":
					source = "."
				case inside:
					source = strings.TrimPrefix(rest, "/")
				}
				c.Mounts = append(c.Mounts, source+":"+target+":"+strconv.FormatBool(ro))
			case "--env":
				name, v, ok := strings.Cut(value, "=")
				if !ok {
					v, ok = env[name]
					if !ok {
						continue
					}
				}
				if !slices.Contains([]string{"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "BUILDKITE_AGENT_ACCESS_TOKEN"}, name) {
					c.Env[name] = v
				}
			case "--workdir":
				c.Workdir = value
			case "--entrypoint":
				c.Entrypoint = &value
			case "--tmpfs":
				c.Tmpfs = append(c.Tmpfs, value)
			case "-u":
				c.User = value
				if value == "0:0" { // the recorder was root
					c.User = "own"
				}
			case "--group-add":
				c.Groups = append(c.Groups, value)
			case "--cap-drop":
				c.Drop = append(c.Drop, value)
			case "--ulimit":
				u, err := units.ParseUlimit(value)
				must.Do(t, err)
				c.Ulimits = append(c.Ulimits, u.String())
			case "--memory":
				c.Memory = size(value)
			case "--shm-size":
				c.Shm = size(value)
			case "--network":
				c.Network = value
			case "--gpus", "--runtime", "--device", "--cpus", "--memory-swap", "--memory-swappiness", "--label", "--platform":
				// the slot decides
			default:
				t.Fatalf("docker run %s: neither in a spec nor decided by the slot", flag)
			}
		}
		c.Image, c.Args = args[0], append(c.Args, args[1:]...)
	}
	return c
}
