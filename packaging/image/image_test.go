package image

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestDockerfiles holds the Dockerfiles to what makes a build the same tomorrow: what each fetches has its
// version or its checksum, and pins.txt has all of them and no others.
func TestDockerfiles(t *testing.T) {
	t.Parallel()
	if Dockerfile("../image/cpu") != "" || Dockerfile("") != "" {
		t.Error("what is no variant has a Dockerfile")
	}
	// Not versions: what a build may add or choose.
	free := []string{"EXTRA_PACKAGES", "EXTRA_PIP", "GPU_ARCHS", "MATHDX_URL", "PREBUILD_KERNELS"}
	for _, v := range Variants {
		text, err := render(v, Pins())
		must.Do(t, err)
		must.Equal(t, text, Dockerfile(v))
		for _, problem := range lint(text) {
			t.Errorf("%s: %s", v, problem)
		}
		for _, m := range regexp.MustCompile(`(?m)^ARG ([A-Z0-9_]+)=(.*)$`).FindAllStringSubmatch(text, -1) {
			has := slices.ContainsFunc(Pins(), func(p Pin) bool { return p.Variant == v && p.Name == m[1] && p.Version == m[2] })
			if has == slices.Contains(free, m[1]) {
				t.Errorf("%s: ARG %s=%s, pinned is %v", v, m[1], m[2], has)
			}
		}
	}
}

// TestPins checks each line of pins.txt, and that a version of which the Dockerfile knows nothing, or which it
// misses, does not pass unnoticed.
func TestPins(t *testing.T) {
	t.Parallel()
	var lines []string
	for line := range strings.Lines(pinned) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
	}
	pins := Pins()
	for i, p := range pins {
		must.Equal(t, lines[i], strings.Join([]string{p.Variant, p.Name, p.Version, p.Newer}, " "))
		if !slices.Contains(Variants, p.Variant) || !regexp.MustCompile(`^(-|image|pip(:[a-z]+)?|git:https://[a-zA-Z0-9./-]+)$`).MatchString(p.Newer) {
			t.Errorf("%+v", p)
		}
		if _, err := render(p.Variant, slices.Delete(slices.Clone(pins), i, i+1)); err == nil && p.Newer != "pip" {
			t.Errorf("the Dockerfile does not need %+v", p)
		}
		if _, err := render(p.Variant, append(slices.Clone(pins), Pin{p.Variant, "OTHER_VERSION", "1", "-"})); err == nil {
			t.Errorf("%s has a pin that is in no Dockerfile", p.Variant)
		}
	}
	must.Equal(t, len(lines), len(pins))
}

var (
	comment = regexp.MustCompile(`(?m)^[ \t]*#.*\n`)
	goesOn  = regexp.MustCompile(`\\\n[ \t]*`)
	exact   = regexp.MustCompile(`^"[A-Za-z0-9-]+(\[[a-z0-9,-]+\])?==([0-9][0-9a-z.+]*|\$\{[A-Z0-9]+_VERSION\})"$`)
	version = regexp.MustCompile(`(?m)^ARG BASE=(.*@sha256:[0-9a-f]{64}|.*:.*[0-9]+\.[0-9]+.*)$`)
	pip     = regexp.MustCompile(`pip install ([^&|;]+)`)
)

// lint says what is wrong with a Dockerfile.
func lint(text string) (problems []string) {
	say := func(parts ...string) { problems = append(problems, strings.Join(parts, "")) }
	lines := strings.Split(goesOn.ReplaceAllString(comment.ReplaceAllString(text, ""), ""), "\n")
	if !slices.Contains(lines, `SHELL ["/bin/bash", "-euo", "pipefail", "-c"]`) {
		say("SHELL fails only with the last of a pipe")
	}
	for _, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "", "ARG", "ENV", "LABEL", "SHELL":
		case "FROM":
			if rest != "${BASE}" || !version.MatchString(text) {
				say("FROM ", rest, " is no ${BASE} with a version")
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
			if strings.Contains(rest, "git clone") && !strings.Contains(rest, `--branch "${`) && !strings.Contains(rest, `git checkout "${`) {
				say("git clone takes the newest")
			}
			if strings.Contains(rest, "curl -") && !strings.Contains(rest, "_SHA256}") {
				say("what curl fetches has no checksum")
			}
			problems = append(problems, lintPip(rest)...)
		default:
			say(word, " is in it")
		}
	}
	return problems
}

func lintPip(run string) (problems []string) {
	for _, m := range pip.FindAllStringSubmatch(run, -1) {
		words := strings.Fields(m[1])
		if !slices.Contains(words, "--no-cache-dir") {
			problems = append(problems, "pip install keeps its cache")
		}
		for i, word := range words {
			if free := word == "--no-cache-dir" || word == "--index-url" || i > 0 && words[i-1] == "--index-url" || word == "${EXTRA_PIP}"; !free && !exact.MatchString(word) {
				problems = append(problems, "pip installs "+strings.Trim(word, `"`)+", which has no version")
			}
		}
	}
	return problems
}
