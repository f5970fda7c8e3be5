package runner

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	// annotationLimit is far below Buildkite's limit of 1 MiB for a body: no one reads
	// more on a build's page.
	annotationLimit = 60 << 10
	annotationTime  = 10 * time.Second // for all attempts
	annotationTry   = 4 * time.Second  // for each of two attempts
)

// agentAPI is how a job reaches Buildkite: the agent's own API, with the token that the
// agent gave the job.
type agentAPI struct {
	endpoint string // the agent's setting: https://agent.buildkite.com/v3
	jobID    string
	token    string
	pause    time.Duration // before the second attempt
}

// newAgentAPI reads the API's settings from a job's environment. annotate refuses if
// some are missing.
func newAgentAPI(public, private []string) agentAPI {
	return agentAPI{
		// The agent's own default; not every container gets the variable.
		endpoint: cmp.Or(getenv(public, "BUILDKITE_AGENT_ENDPOINT"), "https://agent.buildkite.com/v3"), jobID: getenv(public, "BUILDKITE_JOB_ID"),
		// A copy, so that the token does not keep the payload beside it in memory.
		token: strings.Clone(getenv(private, "BUILDKITE_AGENT_ACCESS_TOKEN")), pause: time.Second,
	}
}

// annotate puts a text on the build's page. Jobs of one build do not overwrite each
// other's texts.
func (a agentAPI) annotate(ctx context.Context, body, style string) error {
	switch {
	case a.token == "":
		return errors.New("BUILDKITE_AGENT_ACCESS_TOKEN is not set here; kbnode's nodes keep it out of containers")
	case a.jobID == "":
		return errors.New("BUILDKITE_JOB_ID is not set here; pass it to the container")
	}
	base, err := url.Parse(a.endpoint)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return errors.New("BUILDKITE_AGENT_ENDPOINT is not an HTTP URL")
	}
	doc, err := json.Marshal(map[string]any{"body": body, "style": style, "context": "kbnode-" + a.jobID, "append": false})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, annotationTime)
	defer cancel()
	target := base.JoinPath("jobs", url.PathEscape(a.jobID), "annotations").String()
	again, err := a.post(ctx, target, doc)
	if !again {
		return err
	}
	select {
	case <-ctx.Done():
		return err
	case <-time.After(a.pause):
	}
	_, err = a.post(ctx, target, doc)
	return err
}

// post makes one attempt and reports whether to make another. An attempt replaces what
// an earlier one may have left.
func (a agentAPI) post(ctx context.Context, target string, doc []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, annotationTry)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(doc))
	if err != nil {
		return false, fmt.Errorf("ask agent API: %w", err)
	}
	req.Header.Set("Authorization", "Token "+a.token)
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the token is for this address only
	}}
	resp, err := client.Do(req)
	if err != nil {
		return true, fmt.Errorf("ask agent API: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read as far as it is wanted
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return false, nil
	}
	var answer struct{ Message string }
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil || json.Unmarshal(body, &answer) != nil {
		answer.Message = ""
	}
	again = resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500
	return again, fmt.Errorf("ask agent API: it answered %s", text.Line(strings.TrimSpace(resp.Status+" "+answer.Message), lineRunes))
}

// markdown is an annotation of limited size.
type markdown struct {
	text []byte
	over bool
}

// add appends a block, or nothing if it or an earlier block did not fit.
func (m *markdown) add(block string) {
	if m.over = m.over || len(m.text)+len(block) > annotationLimit; !m.over {
		m.text = append(m.text, block...)
	}
}

// annotation renders a result as Markdown and returns it with Buildkite's style for it.
func annotation(r *Result, list []*evalSummary) (body, style string) {
	sentence, ok := verdictOf(r, list)
	style = "warning" // the submission's fault
	switch {
	case ok:
		style = "success"
	case !r.Success:
		style = "error"
	}
	m := &markdown{}
	m.add("**" + plain(sentence) + "**\n")
	if text := machine(r.System); text != "" {
		m.add("\non " + plain(text) + "\n")
	}
	if len(list) > 0 {
		m.add("\n| evaluation | verdict | | time |\n|---|---|---|---:|\n")
	}
	for _, s := range list {
		m.add(tableRow(plain(s.name), plain(s.verdict), plain(s.numbers()), plain(s.seconds)))
	}
	for _, s := range list {
		m.timings(s)
		for _, c := range s.failed {
			m.add("\n" + code(c.title()) + "\n" + codeBlock(c.message))
		}
		m.more(s.failedMore, "failed")
	}
	if m.over {
		m.text = append(m.text, "\n… and more; see result.json for all\n"...)
	}
	return string(m.text), style
}

func (m *markdown) timings(s *evalSummary) {
	if len(s.timings) == 0 {
		return
	}
	m.add("\n| " + plain(s.name) + " | mean ± error | best | worst |\n|---|---:|---:|---:|\n")
	for _, c := range s.timings {
		if c.failed {
			m.add(tableRow(code(c.spec), "failed", "", ""))
		} else {
			m.add(tableRow(code(c.spec), plain(c.mean), plain(c.best), plain(c.worst)))
		}
	}
	m.more(s.timingsMore, "benchmarks")
}

func (m *markdown) more(n int, what string) {
	if n > 0 {
		m.add(fmt.Sprintf("\n… and %d more %s\n", n, what))
	}
}

func tableRow(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// plain renders a line so that Markdown, HTML and Buildkite's emoji find no markup in
// it: unchanged if it consists of letters, digits and harmless characters, else as
// code.
func plain(s string) string {
	s = text.Line(s, lineRunes)
	for i, r := range s {
		colon := r == ':' && (i+1 == len(s) || s[i+1] == ' ') // not part of an emoji or an address
		if !colon && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(` .,;%/=+-±×…()'"`, r) {
			return code(s)
		}
	}
	if strings.Contains(strings.ToLower(s), "www.") {
		return code(s)
	}
	return s
}

// code renders a line as a code span. A span ends only at its own number of backquotes
// or, in a table, at a bar, so bars are replaced.
func code(s string) string {
	s = strings.ReplaceAll(text.Line(s, lineRunes), "|", "¦")
	if s == "" {
		return ""
	}
	fence := "`"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	if len(fence) > 1 {
		s = " " + s + " " // not shown; separates backquotes at the ends from the fence
	}
	return fence + s + fence
}

// codeBlock renders a text unchanged, between fences that are longer than any in it.
func codeBlock(s string) string {
	s, cut := text.Cut(text.Block(s), messageRunes, messageLines)
	if s = strings.TrimRight(s, " \t\n"); s == "" {
		return ""
	}
	if cut {
		s += "\n[…]"
	}
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	return "\n" + fence + "\n" + s + "\n" + fence + "\n"
}
