package image

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestDockerfiles holds the Dockerfiles to what makes a build the same tomorrow:
// each base and each of pip's packages has its version, in an argument.
func TestDockerfiles(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	must.Do(t, err)
	var there []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".Dockerfile"); ok {
			there = append(there, name)
		}
	}
	if d := cmp.Diff(Variants, there); d != "" {
		t.Fatal(d)
	}
	if Dockerfile("../image/cpu") != "" || Dockerfile("") != "" {
		t.Error("what is no variant has a Dockerfile")
	}
	for _, v := range Variants {
		for _, problem := range lint(Dockerfile(v)) {
			t.Errorf("%s.Dockerfile: %s", v, problem)
		}
	}
}

var (
	comment  = regexp.MustCompile(`(?m)^[ \t]*#.*\n`)
	goesOn   = regexp.MustCompile(`\\\n[ \t]*`)
	argument = regexp.MustCompile(`^ARG ([A-Z_]+)=(.*)$`)
	pinned   = regexp.MustCompile(`^"?[a-z0-9-]+==\$\{([A-Z]+_VERSION)\}"?$`)
	version  = regexp.MustCompile(`@sha256:[0-9a-f]{64}$|:.*[0-9]+\.[0-9]+`)
	pip      = regexp.MustCompile(`pip install ([^&|;]+)`)
)

// lint says what is wrong with a Dockerfile.
func lint(text string) (problems []string) {
	say := func(parts ...string) { problems = append(problems, strings.Join(parts, "")) }
	lines := strings.Split(goesOn.ReplaceAllString(comment.ReplaceAllString(text, ""), ""), "\n")
	args := map[string]string{}
	for _, line := range lines {
		if m := argument.FindStringSubmatch(line); m != nil {
			args[m[1]] = m[2]
		}
	}
	if !slices.Contains(lines, `SHELL ["/bin/bash", "-euo", "pipefail", "-c"]`) {
		say("SHELL fails only with the last of a pipe")
	}
	for _, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "", "ARG", "ENV", "LABEL", "SHELL":
		case "FROM":
			if rest != "${BASE}" {
				say("FROM ", rest, " is no ${BASE}")
			} else if !version.MatchString(args["BASE"]) {
				say(`BASE is "`, args["BASE"], `", which is no version`)
			}
		case "RUN":
			if strings.HasPrefix(rest, "--") {
				say("RUN ", strings.SplitN(rest, "=", 2)[0], " needs BuildKit")
			}
			if strings.Contains(rest, "apt-get install") {
				if !strings.Contains(rest, "rm -rf /var/lib/apt/lists/*") {
					say("apt-get install leaves lists")
				}
				if !strings.Contains(rest, "--no-install-recommends") {
					say("apt-get install takes what is not asked for")
				}
			}
			problems = append(problems, lintPip(rest, args)...)
		default:
			say(word, " is in it")
		}
	}
	return problems
}

func lintPip(run string, args map[string]string) (problems []string) {
	for _, m := range pip.FindAllStringSubmatch(run, -1) {
		words := strings.Fields(m[1])
		if !slices.Contains(words, "--no-cache-dir") {
			problems = append(problems, "pip install keeps its cache")
		}
		for i, word := range words {
			switch {
			case word == "--no-cache-dir", word == "--index-url", i > 0 && words[i-1] == "--index-url", word == "${EXTRA_PIP}":
			case !pinned.MatchString(word):
				problems = append(problems, "pip installs "+strings.Trim(word, `"`)+", which has no version")
			case args[pinned.FindStringSubmatch(word)[1]] == "":
				problems = append(problems, pinned.FindStringSubmatch(word)[1]+" has no default")
			}
		}
	}
	return problems
}
