package job_test

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
	"github.com/gpu-mode/kbnode/test/must"
)

func attack(vars map[string]string) job.Input { return build(jobtest.Step(vars)) }

func TestHostileBuilds(t *testing.T) {
	t.Parallel()
	plain := read(t, attack(nil))
	for _, tt := range jobtest.Hostile {
		t.Run(tt.Name, func(t *testing.T) {
			t.Parallel()
			in := attack(tt.Vars)
			in.Env["BUILDKITE_AGENT_ACCESS_TOKEN"] = "secret" // whatever the build sends
			s, err := job.Read(in)
			if tt.Field != "" {
				refused(t, err, tt.Field)
				return
			}
			must.Do(t, err)
			inert(t, plain, s)
		})
	}
}

// refused tests that err is one short sentence about that field.
func refused(t *testing.T, err error, field string) {
	t.Helper()
	r, ok := errors.AsType[*job.Refusal](err)
	if !ok || r.Field != field {
		t.Fatalf("not a refusal of %s: %v", field, err)
	}
	if text := err.Error(); len(text) > 600 || strings.ContainsFunc(text, unicode.IsControl) {
		t.Errorf("the refusal has %d bytes: %.700q", len(text), text)
	}
}

// inert tests that two jobs differ in their environments only, and that this one has nothing of the
// slot's or the agent's in its own.
func inert(t *testing.T, plain, s *job.Spec) {
	t.Helper()
	a, b := *plain, *s
	a.Env, b.Env = nil, nil
	must.Equal(t, a, b)
	for _, v := range s.Env {
		for _, prefix := range []string{"NVIDIA_", "CUDA_VISIBLE_DEVICES", "LD_", "KBNODE_", "BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_TOKEN", "BUILDKITE_AGENT_JOB_API_", "KERNELBOT_MEMORY", "KERNELBOT_CPUSET"} {
			if strings.HasPrefix(v.Name, prefix) || v.Value == "secret" {
				t.Errorf("the container has %s=%s", v.Name, v.Value)
			}
		}
	}
}

// TestEnvironmentWins tests whose value counts where the agent replaced what was sent.
func TestEnvironmentWins(t *testing.T) {
	t.Parallel()
	in := attack(map[string]string{"A": "sent", "B": "sent", "BUILDKITE_REDACTED_VARS": "NOTHING"})
	in.Env["A"] = "environment"
	delete(in.Env, "B")
	delete(in.Env, "BUILDKITE_REDACTED_VARS")
	s := read(t, in)
	values := map[string]string{}
	for _, v := range s.Env {
		values[v.Name] = v.Value
	}
	if _, passed := values["B"]; passed || values["A"] != "environment" || len(s.Redact) > 0 {
		t.Errorf("A=%s, B passed: %v, hidden: %q", values["A"], passed, s.Redact)
	}
	in = attack(map[string]string{"BUILDKITE_SECRETS_CONFIG": `[{"key":"x"}]`})
	in.Env["BUILDKITE_SECRETS_CONFIG"] = ""
	_, err := job.Read(in)
	refused(t, err, "BUILDKITE_SECRETS_CONFIG")
}

func TestCheckout(t *testing.T) {
	t.Parallel()
	// No refusal repeats a password, or changes what was sent.
	for _, password := range []string{"secret", "a@secret", "a/secret", "a\n//secret"} {
		_, err := job.Read(attack(map[string]string{"BUILDKITE_REPO": "https://user:" + password + "@github.com/gpu-mode/kernelbot"}))
		refused(t, err, "BUILDKITE_REPO")
		if strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
	for repo, allowed := range map[string]string{
		"https://github.com/gpu-mode/kernelbot/": "https://github.com/gpu-mode/kernelbot",
		"http://github.com/gpu-mode/Kernelbot":   "https://github.com/gpu-mode/Kernelbot",
		"https://GitHub.com/GPU-MODE/kernelbot":  "https://github.com/gpu-mode/kernelbot",
		"git@GitHub.com:gpu-mode/kernelbot":      "git@github.com:gpu-mode/kernelbot",
		"https://github.com/gpu-mod/kernelbot/":  "",
	} {
		_, err := job.Read(attack(map[string]string{"BUILDKITE_REPO": repo}))
		refused(t, err, "BUILDKITE_REPO")
		if says := strings.Contains(err.Error(), "it allows \""+allowed+"\", so write that"); says != (allowed != "") {
			t.Errorf("%s: %v", repo, err)
		}
	}
	_, err := job.Read(attack(map[string]string{"BUILDKITE_COMMIT": " HEAD"}))
	refused(t, err, "BUILDKITE_COMMIT")
	if !strings.Contains(err.Error(), "HEAD") {
		t.Error(err)
	}
	_, err = job.Read(attack(map[string]string{"BUILDKITE_BRANCH": "someone:main", "BUILDKITE_COMMIT": strings.Repeat("a", 40)}))
	refused(t, err, "BUILDKITE_BRANCH")
	if !strings.Contains(err.Error(), "fork") {
		t.Error(err)
	}
	for _, vars := range []map[string]string{{"BUILDKITE_SKIP_CHECKOUT": "yes"}, {"BUILDKITE_SKIP_CHECKOUT": "1", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload", "BUILDKITE_PLUGINS": ""}} {
		_, err = job.Read(attack(vars))
		refused(t, err, "BUILDKITE_SKIP_CHECKOUT")
	}
	for name, tt := range map[string]struct {
		vars map[string]string
		want string
	}{
		"a script":                    {jobtest.Options(`"image":"a"`), job.CheckoutMirror},
		"skipped":                     {jobtest.Options(`"image":"a","skip-checkout":true`), job.CheckoutNone},
		"not mounted":                 {jobtest.Options(`"image":"a","mount-checkout":false`), job.CheckoutNone},
		"a part of it mounted":        {jobtest.Options(`"image":"a","mount-checkout":false,"volumes":["./x:/x"]`), job.CheckoutMirror},
		"an evaluation":               {jobtest.Options(`"image":"a","command":["kbnode","runner"]`), job.CheckoutNone},
		"an evaluation by its path":   {jobtest.Options(`"image":"a","entrypoint":"/usr/local/bin/kbnode","command":["runner"]`), job.CheckoutNone},
		"an evaluation and more":      {jobtest.Options(`"image":"a","command":["kbnode runner; cat x"]`), job.CheckoutMirror},
		"an evaluation with files":    {jobtest.Options(`"image":"a","command":["kbnode","runner"],"volumes":["./x:/x"]`), job.CheckoutMirror},
		"an evaluation of a file":     {jobtest.Options(`"image":"a","command":["kbnode","runner","--payload","x"]`), job.CheckoutMirror},
		"skipped by the step":         {map[string]string{"BUILDKITE_SKIP_CHECKOUT": "true", "BUILDKITE_REPO": "https://example.com/not/allowed"}, job.CheckoutNone},
		"skipped as 1":                {map[string]string{"BUILDKITE_SKIP_CHECKOUT": "1"}, job.CheckoutNone},
		"skipped as T":                {map[string]string{"BUILDKITE_SKIP_CHECKOUT": "T"}, job.CheckoutNone},
		"skipped without a plugin":    {map[string]string{"BUILDKITE_SKIP_CHECKOUT": "TRUE", "BUILDKITE_PLUGINS": ""}, job.CheckoutNone},
		"not skipped":                 {map[string]string{"BUILDKITE_SKIP_CHECKOUT": "false"}, job.CheckoutMirror},
		"not skipped as 0":            {map[string]string{"BUILDKITE_SKIP_CHECKOUT": "0"}, job.CheckoutMirror},
		"not skipped as nothing":      {map[string]string{"BUILDKITE_SKIP_CHECKOUT": ""}, job.CheckoutMirror},
		"a repository without a name": {map[string]string{"BUILDKITE_REPO": ""}, job.CheckoutNone},
	} {
		if strings.Contains(tt.vars["BUILDKITE_PLUGINS"], "command") {
			tt.vars["BUILDKITE_COMMAND"] = ""
		}
		if s := read(t, attack(tt.vars)); s.Checkout.Mode != tt.want {
			t.Errorf("%s: %q, want %q", name, s.Checkout.Mode, tt.want)
		}
	}
	_, err = job.Read(attack(map[string]string{"BUILDKITE_REPO": "", "BUILDKITE_PLUGINS": "", "BUILDKITE_COMMAND": "buildkite-agent pipeline upload"}))
	refused(t, err, "BUILDKITE_REPO")
}

// TestVariablesOfTheAgent tests that no variable that buildkite-agent 3.76.2 or 3.138.3 reads changes a job,
// besides those that say what it is. The list is of all words BUILDKITE_… in the agent's code.
func TestVariablesOfTheAgent(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/agent-variables.txt")
	must.Do(t, err)
	names := strings.Fields(string(text))
	if len(names) < 300 {
		t.Fatalf("%d variables", len(names))
	}
	means := []string{
		"BUILDKITE_ARTIFACT_PATHS", "BUILDKITE_BRANCH", "BUILDKITE_BUILD_ID", "BUILDKITE_COMMAND", "BUILDKITE_COMMIT", "BUILDKITE_JOB_ID",
		"BUILDKITE_PLUGINS", "BUILDKITE_REPO", "BUILDKITE_ARTIFACT_UPLOAD_DESTINATION", "BUILDKITE_REFSPEC", "BUILDKITE_SECRETS_CONFIG",
		"BUILDKITE_SKIP_CHECKOUT",
	}
	plain := read(t, attack(nil))
	for _, name := range names {
		if slices.Contains(means, name) {
			continue
		}
		for _, value := range []string{"/etc", "true", "$(id)"} {
			in := attack(map[string]string{name: value})
			if name == "BUILDKITE_REDACTED_VARS" { // the agent's own value wins
				in.Env[name] = "*_TOKEN,*_PASSWORD"
			}
			s, err := job.Read(in)
			if err != nil {
				t.Errorf("%s=%s: %v", name, value, err)
				continue
			}
			inert(t, plain, s)
		}
	}
}

func TestReadEnv(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("x", job.MaxEnvFile)
	for name, tt := range map[string]struct {
		file, object, field string
		want                []job.Var
	}{
		"usual":            {file: "B=\"x\\ny\"\nBARE_NAME\n\nA=\"=\\\"\"\n", object: `{"B":"x\ny","A":"=\""}`, want: []job.Var{{Name: "B", Value: "x\ny"}, {Name: "A", Value: `="`}}},
		"no line at last":  {file: `A="x"`, object: ` {"A":"x"} `, want: []job.Var{{Name: "A", Value: "x"}}},
		"nothing":          {file: "", object: "{}"},
		"a function":       {file: "BASH_FUNC_x%%=\"() { id; }\"\n", object: `{"BASH_FUNC_x%%":"() { id; }"}`, want: []job.Var{{Name: "BASH_FUNC_x%%", Value: "() { id; }"}}},
		"twice":            {file: "A=\"x\"\nA=\"y\"\n", object: `{"A":"x","A":"y"}`, field: "env"},
		"a NUL":            {file: `A="\x00"`, object: `{"A":"\u0000"}`, field: "env"},
		"a NUL in a name":  {file: "A\x00=\"x\"", object: `{"A\u0000":"x"}`, field: "env"},
		"not UTF-8":        {file: `A="\xff"`, object: "{\"A\":\"\xff\"}", field: "env"},
		"no name":          {file: `="x"`, object: `{"":"x"}`, field: "env"},
		"a long name":      {file: strings.Repeat("A", 300) + `="x"`, object: `{"` + strings.Repeat("A", 300) + `":"x"}`, field: "env"},
		"not quoted":       {file: "A=x\n", object: `{"A":1}`, field: "env"},
		"quoted otherwise": {file: "A=`x`\n", object: `{"A":["x"]}`, field: "env"},
		"a character":      {file: "A='x'\n", object: `["A"]`, field: "env"},
		"a name with =":    {file: `A=B="x"`, object: `{"A":{"B":"x"}}`, field: "env"},
		"half":             {file: `A="x`, object: `{"A":"x"`, field: "env"},
		"more":             {file: `A="x" B`, object: `{"A":"x"}{}`, field: "env"},
		"too much":         {file: `A="` + many + `"`, object: `{"A":"` + many + `"}`, field: "env"},
		"too many":         {file: lines(5000), object: object(t, 5000), field: "env"},
	} {
		for field, read := range map[string]func() ([]job.Var, error){
			"BUILDKITE_ENV_FILE":      func() ([]job.Var, error) { return job.ReadEnvFile(tt.file) },
			"BUILDKITE_ENV_JSON_FILE": func() ([]job.Var, error) { return job.ReadEnvJSON(tt.object) },
		} {
			t.Run(name+" of "+field, func(t *testing.T) {
				t.Parallel()
				got, err := read()
				want := slices.Clone(tt.want)
				if field == "BUILDKITE_ENV_JSON_FILE" {
					slices.SortFunc(want, func(a, b job.Var) int { return strings.Compare(a.Name, b.Name) })
				}
				if tt.field != "" {
					refused(t, err, field)
				} else if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("%v\n%s", err, diff)
				}
			})
		}
	}
}

func number(i int) string { return "A" + strings.Repeat("x", i%100) + string(rune('a'+i/100)) }

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(number(i) + "=\"\"\n")
	}
	return b.String()
}

func object(t *testing.T, n int) string {
	t.Helper()
	m := map[string]string{}
	for i := range n {
		m[number(i)] = ""
	}
	text, err := json.Marshal(m)
	must.Do(t, err)
	return string(text)
}
