package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestQueueCreate makes a queue, a token with which an agent registers, and a pipeline.
func TestQueueCreate(t *testing.T) {
	s := bktest.New(bktest.Options{Queues: []string{"h100"}, Hosted: []string{"hosted"}})
	useBuildkite(t, s)
	file := filepath.Join(t.TempDir(), "token")
	r := kbnode(t, "queue", "create", "b200", "--agent-token-file", file, "--pipeline", "kernelbot", "--repository", "https://github.com/gpu-mode/kernelbot")
	pipelines, tokens := s.Made()
	must.Equal(t, 0, r.code)
	must.Contain(t, r.out, "Queue b200 was made in the cluster Default cluster.\n", "The agent token is in "+file, "sudo kbnode install --queue b200 --token-file "+file+"\n", "Pipeline kernelbot was made.\n")
	info, err := os.Stat(file)
	must.Do(t, err)
	token, err := agent.ReadToken(file)
	if err != nil || len(tokens) != 1 || token != tokens[0] || info.Mode().Perm() != 0o600 || strings.Contains(r.out+r.err, token) {
		t.Errorf("%v, %v, mode %o: %+v", err, tokens, info.Mode(), r)
	}
	if len(pipelines) != 1 || !strings.Contains(pipelines[0].Configuration, "KERNELBOT_QUEUE") || pipelines[0].Repository != "https://github.com/gpu-mode/kernelbot" {
		t.Errorf("%+v", pipelines)
	}
	if r := kbnode(t, "queue", "create", "b200"); r.code != 0 || r.out != "Queue b200 is in the cluster Default cluster already.\n" {
		t.Errorf("again: %+v", r)
	}
	if r := kbnode(t, "queue", "create", "hosted"); r.code != 1 || !strings.Contains(r.err, "queue hosted is for Buildkite's hosted agents, which cannot be changed; choose another name") {
		t.Errorf("hosted: %+v", r)
	}
}

// TestQueueCreateFails leaves no file without a token, and says what to do.
func TestQueueCreateFails(t *testing.T) {
	const clusters = "/v2/organizations/{org}/clusters"
	for name, tt := range map[string]struct {
		options bktest.Options
		fault   bktest.Fault
		args    string
		code    int
		says    string
	}{
		"no right to read":   {fault: bktest.Fault{Route: "GET " + clusters, Status: http.StatusForbidden}, code: 1, says: "give it the scope read_clusters"},
		"no right to write":  {fault: bktest.Fault{Route: "POST " + clusters + "/{cluster}/queues", Status: http.StatusForbidden}, code: 1, says: "create queue b200: the API token may not do this; give it the scope write_clusters"},
		"no token":           {fault: bktest.Fault{Route: "POST " + clusters + "/{cluster}/tokens", Status: http.StatusForbidden}, code: 1, says: "create agent token: the API token may not do this"},
		"the answer is lost": {fault: bktest.Fault{Route: "POST " + clusters + "/{cluster}/queues", Perform: true}, says: ""},
		"no pipeline":        {fault: bktest.Fault{Route: "POST /v2/organizations/{org}/pipelines", Status: http.StatusForbidden}, args: "--pipeline k --repository https://github.com/a/b", code: 1, says: "write_pipelines"},
		"two clusters":       {options: bktest.Options{Clusters: []string{"a", "b"}}, code: 1, says: "the organization has several clusters; add --cluster NAME: a, b"},
		"one of two":         {options: bktest.Options{Clusters: []string{"a", "b"}}, args: "--cluster a"},
		"another cluster":    {args: "--cluster x", code: 1, says: `the organization has no cluster "x"; it has Default cluster`},
		"no cluster":         {options: bktest.Options{Clusters: []string{}}, code: 1, says: "the organization has no cluster; make one in Buildkite"},
		"half a pipeline":    {args: "--pipeline k", code: 2, says: "--pipeline and --repository need each other"},
		"a login":            {args: "--pipeline k --repository https://me:secret@github.com/a/b", code: 2, says: "--repository is not a public address"},
	} {
		t.Run(name, func(t *testing.T) {
			s := bktest.New(tt.options)
			if tt.fault.Route != "" {
				s.Inject(tt.fault)
			}
			useBuildkite(t, s)
			file := filepath.Join(t.TempDir(), "token")
			r := kbnode(t, append([]string{"queue", "create", "b200", "--agent-token-file", file}, strings.Fields(tt.args)...)...)
			if r.code != tt.code || !strings.Contains(r.err, tt.says) || strings.Contains(r.err, "secret") {
				t.Errorf("%+v", r)
			}
			_, tokens := s.Made()
			if _, err := os.Stat(file); (err == nil) != (len(tokens) > 0) {
				t.Errorf("%v with %d tokens", err, len(tokens))
			}
		})
	}
	for _, args := range []string{"b200.x", "a b", strings.Repeat("a", 101), ""} {
		if r := kbnode(t, "queue", "create", args); r.code != 2 {
			t.Errorf("%q: %+v", args, r)
		}
	}
}
