package vm

import "testing"

func TestSSHCommand(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]struct {
		args []string
		want string
	}{
		"as Ansible types it": {[]string{"-C", "-o", "User=\"root\"", "-o", "ConnectTimeout=10", "guest", "/bin/sh -c 'echo ~ && sleep 0'"}, "/bin/sh -c 'echo ~ && sleep 0'"},
		"a terminal":          {[]string{"-tt", "-p22", "guest", "id", "-u"}, "id -u"},
		"the command's own":   {[]string{"guest", "ls", "-o", "/"}, "ls -o /"},
		"a login":             {[]string{"-o", "User=root", "guest"}, ""},
		"nothing":             {nil, ""},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			got, err := sshCommand(want.args)
			if got != want.want || (err != nil) != (want.want == "") {
				t.Errorf("%q, %v; want %q", got, err, want.want)
			}
		})
	}
}
