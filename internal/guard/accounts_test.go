package guard

import (
	"maps"
	"strings"
	"testing"
)

// TestAccounts starts containers of images whose account files the engine must not read.
func TestAccounts(t *testing.T) {
	t.Parallel()
	const plain, link = `{"size": 1048576, "mode": 420}`, `{"size": 9, "mode": 134218239, "linkTarget": "/dev/zero"}`
	for name, row := range map[string]struct {
		stats map[string]string
		want  string // in the refusal; "" for none
	}{
		"plain":                      {map[string]string{"/etc/passwd": plain, "/etc/group": plain}, ""},
		"none":                       {map[string]string{"/etc/passwd": "", "/etc/group": ""}, ""},
		"a link to a file":           {map[string]string{"/etc/passwd": link, "/dev/zero": plain, "/etc/group": ""}, ""},
		"a link to nothing":          {map[string]string{"/etc/passwd": link, "/dev/zero": "", "/etc/group": ""}, ""},
		"a FIFO":                     {map[string]string{"/etc/passwd": `{"size": 0, "mode": 33554852}`}, "the image's /etc/passwd is not a regular file"},
		"a directory":                {map[string]string{"/etc/passwd": `{"mode": 2147484141}`}, "the image's /etc/passwd is not a regular file"},
		"a device":                   {map[string]string{"/etc/group": `{"mode": 69206436}`}, "the image's /etc/group is not a regular file"},
		"a link to a device":         {map[string]string{"/etc/passwd": link, "/dev/zero": `{"mode": 69206436}`}, "the image's /etc/passwd is not a regular file"},
		"a link to a link":           {map[string]string{"/etc/group": link, "/dev/zero": link}, "the image's /etc/group is not a regular file"},
		"a large file":               {map[string]string{"/etc/group": `{"size": 1048577, "mode": 420}`}, "the image's /etc/group has 1048577 bytes"},
		"no answer":                  {map[string]string{"/etc/group": "x"}, "check the image's accounts"},
		"a container that went away": {map[string]string{"/etc/passwd": "", "/etc/group": "", "/": ""}, "check the image's accounts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ready(t)
			maps.Copy(r.engine.stats, row.stats)
			o := r.try(t)
			if started := r.engine.started(); (why(o) == "") != (row.want == "") || !strings.Contains(why(o), row.want) || started != (row.want == "") {
				t.Errorf("%+v, started: %t", o, started)
			}
			last := r.engine.created[len(r.engine.created)-1]
			if !strings.HasPrefix(last.Image, "sha256:") || last.Labels[slotLabel] != "" || last.HostConfig.Binds != nil {
				t.Errorf("looked into %+v", last)
			}
			if len(r.engine.containers) > 0 {
				t.Errorf("left is %v", r.engine.containers)
			}
			// The verdict is remembered.
			if row.want == "" {
				n := len(r.engine.created)
				if o := r.try(t); why(o) != "" || len(r.engine.created) != n+1 {
					t.Errorf("the second: %+v, %d containers", o, len(r.engine.created)-n)
				}
			}
		})
	}
}
