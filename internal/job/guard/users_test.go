package guard

import (
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/job"
)

// TestImageUsers runs a job as no user and in no group but those that a job may have, whatever the image calls them.
func TestImageUsers(t *testing.T) {
	t.Parallel()
	const passwd = "root:x:0:0::/:/bin/sh\nsvc:x:991:981::/:\n  app:x:01000:100::/:\nlow:x:1001:981::/:\n2000:x:991:981::/:\nbad:x:+5:1::/:\nodd:x:4294967297:0::/:\nkbnode:x\n2001:x:2001:2001\napp:x:991:991\n"
	const group = "root:x:0:\nvideo:x:27:root,app\nmodels:x:3000:root,low,app\nother:x:981:app,svc\n44:x:981:\n1007:x:981:\n1008:x:1008:\nmany:x:3001:x,app"
	for name, row := range map[string]struct {
		image, step string
		groups      []string // of the step
		user        string
		more        string // groups
		want        string // in the refusal
	}{
		"none":                    {"", "", nil, "0:0", "3000", ""},
		"root":                    {"root", "", nil, "0:0", "3000", ""},
		"a number":                {"1000", "", nil, "1000:100", "3000 3001", ""},
		"a number without a line": {"5000", "", nil, "5000:0", "", ""},
		"zeros":                   {"0001000:00", "", nil, "1000:0", "", ""},
		"a name":                  {"app", "", nil, "1000:100", "3000 3001", ""},
		"a name and a group":      {"app:models", "", nil, "1000:3000", "", ""},
		"the step's name":         {"svc", "app", nil, "1000:100", "3000 3001", ""},
		"the step's group":        {"", "1000:1000", []string{"models", "3005", "video"}, "1000:1000", "3000 3005 993", ""},
		"a plus":                  {"+991:+981", "", nil, "", "", `"+991:+981" is not a user`},
		"a minus":                 {"-1", "", nil, "", "", "is not a user"},
		"two colons":              {"1000:981:x", "", nil, "", "", "is not a user"},
		"an empty group":          {"1000:", "", nil, "", "", "is not a user"},
		"no user":                 {":1000", "", nil, "", "", "is not a user"},
		"a space":                 {" 991", "", nil, "", "", "is not a user"},
		"an underscore":           {"9_91", "", nil, "", "", `the image has no user "9_91"`},
		"hexadecimal":             {"0x3df", "", nil, "", "", `the image has no user "0x3df"`},
		"a service's by name":     {"svc", "", nil, "", "", `user "svc" is 991:981 in the image: "991" is a system account`},
		"the step's, by name":     {"", "svc", nil, "", "", `user "svc" is 991:981 in the image`},
		"a group by the account":  {"low", "", nil, "", "", `user "low" is 1001:981 in the image: "981" is a system group`},
		"a group by the number":   {"1001", "", nil, "", "", `"981" is a system group`},
		"a group by name":         {"1000:other", "", nil, "", "", `"981" is a system group`},
		"a name of digits":        {"2000", "", nil, "2000:0", "", ""},
		"a plus in the image":     {"bad", "", nil, "", "", "has no user"},
		"a large number":          {"odd", "", nil, "", "", "has no user"},
		"a short line":            {"kbnode", "", nil, "", "", "has no user"},
		"an absent group":         {"1000:none", "", nil, "", "", `the image has no group "none"`},
		"the step's absent group": {"", "1000:1000", []string{"none"}, "", "", `the image has no group "none"`},
		"the step's other group":  {"", "1000:1000", []string{"other"}, "", "", `"981" is a system group`},
		"a group called 1007":     {"1000:1007", "", nil, "", "", `a group with the name "1007"`},
		"the step's 1007":         {"", "1000:1000", []string{"1007"}, "", "", `a group with the name "1007"`},
		"a group 1008":            {"1000:1008", "", nil, "1000:1008", "", ""},
	} {
		v := &view{Passwd: []byte(passwd), Group: []byte(group)}
		b := &builder{policy: testPolicy(), facts: testFacts()}
		b.facts.named = []string{"993"}
		wanted := &container.CreateRequest{Config: &container.Config{User: row.step}, HostConfig: &container.HostConfig{GroupAdd: row.groups}}
		err := v.setUser(b, wanted, row.image)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", name, err)
		}
		if got := strings.Join(wanted.HostConfig.GroupAdd, " "); err == nil && (wanted.User != row.user || got != row.more) {
			t.Errorf("%s: %s with %s", name, wanted.User, got)
		}
	}

	r := ready(t)
	r.engine.files = map[string]string{"/etc/passwd": passwd}
	r.engine.user = "svc"
	if o := r.try(t); !strings.Contains(o.Refused, `user "svc" is 991:981 in the image`) || len(r.engine.created) > 0 {
		t.Errorf("%+v", o)
	}
	if o := r.try(t, func(s *job.Spec) { s.User = "app" }); why(o) != "" || r.engine.created[0].User != "1000:100" {
		t.Errorf("%+v", o)
	}
}
