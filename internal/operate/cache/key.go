package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Mode is the only one whose results are kept: others measure times, which no earlier run has.
const Mode = "test"

// Key is a SHA-256 in hexadecimal digits.
type Key string

// Kind is what jobs run on: the values of kindTags.
type Kind string

const versionTag = "kbnode"

var kindTags = []string{versionTag, plan.ImageTag, "gpu-model", "gpu-part", "gpus", "gpu-memory", "sm", "gfx", "driver", "cuda"}

// unversioned is the version of a kbnode that was built by hand, and so of any.
const unversioned = "0.0.0-dev"

// kindOf returns what jobs of an agent run on, or what its tags do not say.
func kindOf(tags []string) (Kind, error) {
	switch version := buildkite.Tag(tags, versionTag); {
	case version == "":
		return "", errors.New("its tags have no version of kbnode")
	case version == unversioned:
		return "", fmt.Errorf("its kbnode has no version of its own, but %s", unversioned)
	case buildkite.Tag(tags, plan.ImageTag) == "":
		return "", errors.New("its tags do not name the image of its jobs: its node needs image.auto_update, and an image that kbnode image update has fetched")
	}
	var b strings.Builder
	for _, key := range kindTags {
		fmt.Fprintf(&b, "%s=%q\n", key, buildkite.Tag(tags, key))
	}
	return Kind(b.String()), nil
}

// QueueKind returns what jobs of a queue run on. It is an error if that depends on the agent that takes them, or is not
// known. It returns "" if there is no agent.
func QueueKind(ctx context.Context, c *buildkite.Client, org, queue string) (kind Kind, err error) {
	var first *buildkite.Agent
	var wrong error
	err = c.EachAgent(ctx, org, func(a buildkite.Agent) bool {
		if a.StandsIn() || !slices.Contains(a.Queues(), queue) {
			return true
		}
		if first == nil {
			first = &a
			kind, wrong = kindOf(a.Tags)
			if wrong != nil {
				wrong = fmt.Errorf("agent %s: %w", text.Line(a.Name, 100), wrong)
				return false
			}
		}
		for _, key := range kindTags {
			if one, other := buildkite.Tag(first.Tags, key), buildkite.Tag(a.Tags, key); one != other {
				wrong = fmt.Errorf("the agents of queue %s differ in %s: %s has %s, and %s has %s", queue, key,
					text.Line(first.Name, 100), named(one), text.Line(a.Name, 100), named(other))
				return false
			}
		}
		return true
	})
	if err == nil {
		err = wrong
	}
	if err != nil {
		return "", err
	}
	return kind, nil
}

func named(value string) string {
	if value == "" {
		return "none"
	}
	return text.Line(value, 100)
}

// KeyOf returns the key of what a request evaluates on agents of a kind. at is the address of Buildkite's API.
func KeyOf(at string, r submit.Request, kind Kind) (Key, error) {
	if !utf8.ValidString(r.Payload) {
		return "", errors.New("the payload is not UTF-8")
	}
	o, err := payload.ParseObject(r.Payload)
	if err != nil {
		return "", err
	}
	if mode, _ := o.Get("mode"); mode != Mode {
		return "", fmt.Errorf("only mode %s is cached", Mode)
	}
	if !r.Inline {
		return "", errors.New("only builds with --inline-steps are cached")
	}
	r.RunID, r.Message, r.Priority = "", "", 0 // its names, and when it runs
	j, err := r.Job()
	if err != nil {
		return "", err
	}
	maps.DeleteFunc(j.Build.Env, func(name, _ string) bool { return payload.IsVar(name) })
	build, err := json.Marshal(j.Build)
	if err != nil {
		return "", fmt.Errorf("write build: %w", err)
	}
	h := sha256.New()
	for _, part := range []string{"kbnode result 1", at, r.Org, r.Pipeline, string(build), string(kind), payload.Canonical(o)} {
		_, _ = fmt.Fprintf(h, "%d %s\n", len(part), part) // a hash takes all
	}
	return Key(hex.EncodeToString(h.Sum(nil))), nil
}
