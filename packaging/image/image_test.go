package image

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDockerfiles holds the Dockerfiles to what makes a build the same tomorrow:
// each base and each of pip's packages has its version, in an argument.
func TestDockerfiles(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
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

// TestLint has lint find what it is for.
func TestLint(t *testing.T) {
	t.Parallel()
	good := Dockerfile("cuda")
	for want, change := range map[string][2]string{
		"FROM debian:13 is no ${BASE}":                {"FROM ${BASE}", "FROM debian:13"},
		"BASE is \"debian\", which is no version":     {"BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04", "BASE=debian"},
		"BASE is \"x:latest\", which is no version":   {"BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04", "BASE=x:latest"},
		"pip installs numpy, which has no version":    {`"numpy==${NUMPY_VERSION}"`, "numpy"},
		"pip installs -r, which has no version":       {`"numpy==${NUMPY_VERSION}"`, "-r requirements.txt"},
		"NUMPY_VERSION has no default":                {"ARG NUMPY_VERSION=2.3.5", "ARG NUMPY_VERSION"},
		"pip install keeps its cache":                 {"pip install --no-cache-dir", "pip install"},
		"apt-get install leaves lists":                {" && rm -rf /var/lib/apt/lists/*", " && true"},
		"apt-get install takes what is not asked for": {" --no-install-recommends", ""},
		"SHELL fails only with the last of a pipe":    {"SHELL", "# SHELL"},
		"ADD is in it":               {"ENV ", "ADD https://x/y /\nENV "},
		"USER is in it":              {"ENV ", "USER nobody\nENV "},
		"RUN --mount needs BuildKit": {"RUN apt", "RUN --mount=type=cache,target=/x apt"},
	} {
		bad := strings.ReplaceAll(good, change[0], change[1])
		if bad == good {
			t.Errorf("%q is not in it", change[0])
		}
		if got := lint(bad); !slices.Contains(got, want) {
			t.Errorf("lint says %q, want %q", got, want)
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
