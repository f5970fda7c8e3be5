package bktest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// softFail parses true, or [{exit_status: 1}, {exit_status: "*"}].
func softFail(v any) ([]string, error) {
	switch v := v.(type) {
	case bool:
		if v {
			return []string{"*"}, nil
		}
		return nil, nil
	case []any:
		var out []string
		for _, e := range v {
			m, ok := e.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%v; want exit_status: N", e)
			}
			status, err := stringList(m["exit_status"])
			if err != nil {
				return nil, fmt.Errorf("exit_status: %w", err)
			}
			out = append(out, status...)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%v; want true, false or a list of exit_status", v)
}

// retryRules parses retry: {automatic: true | {exit_status, limit} | [...]}.
func retryRules(v any) ([]retryRule, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%v; want automatic: …", v)
	}
	var list []any
	switch auto := m["automatic"].(type) {
	case nil:
		return nil, nil
	case bool:
		if !auto {
			return nil, nil
		}
		return []retryRule{{status: []string{"*"}, limit: 2}}, nil
	case []any:
		list = auto
	default:
		list = []any{auto}
	}
	var rules []retryRule
	for _, e := range list {
		rm, ok := e.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("automatic: %v; want exit_status and limit", e)
		}
		rule := retryRule{status: []string{"*"}, limit: 2}
		for k, x := range rm {
			var err error
			switch k {
			case "exit_status":
				rule.status, err = stringList(x)
			case "limit":
				rule.limit, err = number(x)
			case "signal_reason":
				if rule.signal, err = scalar(x); err == nil && !slices.Contains(signalReasons, rule.signal) {
					err = fmt.Errorf("%q; want one of %s", rule.signal, strings.Join(signalReasons, ", "))
				}
			default:
				err = errors.New("not supported here; remove it")
			}
			if err != nil {
				return nil, fmt.Errorf("automatic: %s: %w", k, err)
			}
		}
		rule.limit = min(rule.limit, 10)
		rules = append(rules, rule)
	}
	return rules, nil
}

// agentLost is the signal reason of a job whose agent went silent. Rules do not treat it as
// a reason:
// https://buildkite.com/changelog/193-signal-and-signal-reason-in-automatic-retry-rules.
const agentLost = "agent_lost"

// signalReasons are the reasons that rules may name:
// https://buildkite.com/docs/pipelines/configure/retry.
var signalReasons = []string{"*", "none", "cancel", "agent_stop", "agent_refused", "agent_incompatible", "process_run_error", "signature_rejected", "stack_error"}

func (r retryRule) reasonMatches(reason string) bool {
	switch r.signal {
	case "", "*":
		return true
	case "none":
		return reason == "" || reason == agentLost
	}
	return r.signal == reason
}

func statusMatches(rules []string, status string) bool {
	return slices.Contains(rules, "*") || slices.Contains(rules, status)
}

// scalar returns a value that YAML may have typed as the original string.
func scalar(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case bool, int, int64, uint64:
		return fmt.Sprint(v), nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	}
	return "", fmt.Errorf("%T; want a text or a number", v)
}

func number(v any) (int, error) {
	s, err := scalar(v)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", s)
	}
	return n, nil
}

func stringList(v any) ([]string, error) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var out []string
	for _, e := range list {
		s, err := scalar(e)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func stringMap(v any) (map[string]string, error) {
	if v == nil {
		return nil, nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%T; want a map", v)
	}
	out := make(map[string]string, len(m))
	for k, e := range m {
		s, err := scalar(e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		if strings.ContainsRune(s, 0) || k == "" || strings.ContainsAny(k, "=\x00") {
			return nil, fmt.Errorf("%q cannot be an environment variable", k)
		}
		out[k] = s
	}
	return out, nil
}
