package docker

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/registry"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestRegistryAuth finds credentials where docker login leaves them, and reveals them to no one.
func TestRegistryAuth(t *testing.T) {
	bin := t.TempDir()
	helper := func(name, script string) {
		must.Program(t, filepath.Join(bin, "docker-credential-"+name), "#!/bin/sh\n"+script)
	}
	helper("good", `read -r server; echo "{\"ServerURL\":\"$server\",\"Username\":\"u\",\"Secret\":\"s3cret-$server\"}"`)
	helper("token", `echo '{"Username":"<token>","Secret":"t0ken"}'`)
	helper("none", `echo "credentials not found in native keychain"; exit 1`)
	helper("broken", `echo s3cret; echo s3cret >&2; exit 3`)
	helper("nojson", `echo s3cret`)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	userPass := base64.StdEncoding.EncodeToString([]byte("u:s3cret:x"))
	for _, tt := range []struct {
		name, config, ref string
		want              registry.AuthConfig
		err               string
	}{
		{name: "no file", ref: "r.example/x"},
		{name: "another registry's", config: `{"auths":{"other.example":{"auth":"` + userPass + `"}}}`, ref: "r.example/x"},
		{name: "in the file", config: `{"auths":{"r.example":{"auth":"` + userPass + `"}}}`, ref: "r.example/x:1", want: registry.AuthConfig{Username: "u", Password: "s3cret:x", ServerAddress: "r.example"}},
		{name: "as old versions wrote it", config: `{"auths":{"https://r.example/v1/":{"auth":"` + userPass + `"}}}`, ref: "r.example/x:1", want: registry.AuthConfig{Username: "u", Password: "s3cret:x", ServerAddress: "https://r.example/v1/"}},
		{name: "Docker Hub", config: `{"auths":{"https://index.docker.io/v1/":{"identitytoken":"t"}}}`, ref: "a/b", want: registry.AuthConfig{IdentityToken: "t", ServerAddress: "https://index.docker.io/v1/"}},
		{name: "a helper of its own", config: `{"credHelpers":{"r.example":"good"},"credsStore":"broken"}`, ref: "r.example/x", want: registry.AuthConfig{Username: "u", Password: "s3cret-r.example", ServerAddress: "r.example"}},
		{name: "a helper of all", config: `{"credsStore":"token"}`, ref: "r.example/x", want: registry.AuthConfig{IdentityToken: "t0ken", ServerAddress: "r.example"}},
		{name: "a helper that knows none", config: `{"credsStore":"none"}`, ref: "r.example/x"},
		{name: "a helper that fails", config: `{"credsStore":"broken"}`, ref: "r.example/x", err: "the credential helper for r.example fails"},
		{name: "a helper that talks", config: `{"credsStore":"nojson"}`, ref: "r.example/x", err: "the credential helper for r.example fails"},
		{name: "not JSON", config: `s3cret`, ref: "r.example/x", err: "config.json is not what docker login writes"},
		{name: "not base64", config: `{"auths":{"r.example":{"auth":"s3cret!"}}}`, ref: "r.example/x", err: "log in again"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("DOCKER_CONFIG", dir)
			if tt.config != "" {
				must.Do(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(tt.config), 0o600))
			}
			header, err := registryAuth(tt.ref)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("%v, want %q and no secret", err, tt.err)
				}
				return
			}
			must.Do(t, err)
			var got registry.AuthConfig
			if header != "" {
				text, err := base64.URLEncoding.DecodeString(header)
				if err != nil || json.Unmarshal(text, &got) != nil {
					t.Fatalf("header %q: %v", header, err)
				}
			}
			must.Equal(t, tt.want, got)
		})
	}
}

type fakeNetwork struct {
	Name, ID, Driver string
	EnableIPv6       bool
	Options, Labels  map[string]string
	IPAM             struct{ Config []map[string]string }
}

// networks is an engine that has only networks.
type networks struct {
	list  map[string]*fakeNetwork
	taken string // a subnet that overlaps with another one
	inUse bool
	asked []string
}

func (n *networks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.45")
	path := strings.TrimPrefix(r.URL.Path, "/v1.45")
	name, one := strings.CutPrefix(path, "/networks/")
	fail := func(status int, message string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		n.asked = append(n.asked, r.Method+" "+path)
	}
	switch {
	case path == "/_ping":
	case path == "/networks/create":
		var made fakeNetwork
		_ = json.NewDecoder(r.Body).Decode(&made)
		if len(made.IPAM.Config) > 0 && made.IPAM.Config[0]["Subnet"] == n.taken {
			fail(http.StatusForbidden, "Pool overlaps with other one on this address space")
			return
		}
		made.ID = "id-" + made.Name
		n.list[made.Name] = &made
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]string{"Id": made.ID})
	case path == "/networks":
		list := []*fakeNetwork{}
		for _, one := range n.list {
			list = append(list, one)
		}
		_ = json.NewEncoder(w).Encode(list)
	case one:
		for _, has := range n.list {
			if has.Name == name || has.ID == name {
				switch {
				case r.Method == http.MethodGet:
					_ = json.NewEncoder(w).Encode(has)
				case n.inUse:
					fail(http.StatusForbidden, "network has active endpoints")
				default:
					delete(n.list, has.Name)
					w.WriteHeader(http.StatusNoContent)
				}
				return
			}
		}
		fail(http.StatusNotFound, "network "+name+" not found")
	}
}

func TestEnsureNetwork(t *testing.T) {
	t.Parallel()
	want := Network{
		Name: "kbnode-gpu3", Labels: map[string]string{"kbnode.slot": "3"},
		Subnets: []netip.Prefix{netip.MustParsePrefix("198.18.3.0/24"), netip.MustParsePrefix("198.19.3.0/24")},
	}
	options := map[string]string{bridgeName: "kbnode-gpu3"}
	small := map[string]string{bridgeName: "kbnode-gpu3", bridgeMTU: "1450"}
	usual := &fakeNetwork{Name: "bridge", ID: "id-bridge", Driver: "bridge", Options: map[string]string{bridgeMTU: "1450"}}
	for name, row := range map[string]struct {
		engine  networks
		asked   []string
		subnet  string
		options map[string]string
		refused string
	}{
		"there is none": {networks{}, []string{"POST /networks/create"}, "198.18.3.0/24", options, ""},
		"a smaller MTU": {networks{list: map[string]*fakeNetwork{"bridge": usual}}, []string{"POST /networks/create"}, "198.18.3.0/24", small, ""},
		"its subnet is taken": {networks{taken: "198.18.3.0/24"}, []string{"POST /networks/create", "POST /networks/create"},
			"198.19.3.0/24", options, ""},
		"it is there": {networks{list: map[string]*fakeNetwork{"kbnode-gpu3": {Name: "kbnode-gpu3", Driver: "bridge", Options: options}}},
			nil, "", options, ""},
		"it has another bridge": {networks{list: map[string]*fakeNetwork{"kbnode-gpu3": {Name: "kbnode-gpu3", ID: "1", Driver: "bridge"}}},
			[]string{"DELETE /networks/1", "POST /networks/create"}, "198.18.3.0/24", options, ""},
		"it has IPv6": {networks{list: map[string]*fakeNetwork{"kbnode-gpu3": {Name: "kbnode-gpu3", ID: "1", Driver: "bridge", EnableIPv6: true, Options: options}}},
			[]string{"DELETE /networks/1", "POST /networks/create"}, "198.18.3.0/24", options, ""},
		"it has another bridge and containers": {
			networks{inUse: true, list: map[string]*fakeNetwork{"kbnode-gpu3": {Name: "kbnode-gpu3", ID: "1", Driver: "bridge"}}},
			[]string{"DELETE /networks/1"}, "", nil, "active endpoints"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := &row.engine
			if fake.list == nil {
				fake.list = map[string]*fakeNetwork{}
			}
			e := engineOf(t, fake)
			err := e.EnsureNetwork(t.Context(), want)
			if (err != nil) != (row.refused != "") || err != nil && !strings.Contains(err.Error(), row.refused) {
				t.Fatalf("%v, want %q", err, row.refused)
			}
			must.Equal(t, row.asked, fake.asked)
			if row.refused != "" {
				return
			}
			got := fake.list["kbnode-gpu3"]
			must.Equal(t, row.options, got.Options)
			if row.subnet != "" && (len(got.IPAM.Config) == 0 || got.IPAM.Config[0]["Subnet"] != row.subnet || got.Labels["kbnode.slot"] != "3") {
				t.Errorf("made %+v, want %s", got, row.subnet)
			}
			names, err := e.Networks(t.Context(), "kbnode.slot")
			if err != nil || len(names) == 0 {
				t.Errorf("%v, %v", names, err)
			}
			for range 2 {
				must.Do(t, e.RemoveNetwork(t.Context(), "kbnode-gpu3"))
			}
		})
	}
}

// TestEnsureNetworkAnywhere: if both subnets are taken, the engine chooses.
func TestEnsureNetworkAnywhere(t *testing.T) {
	t.Parallel()
	fake := &networks{list: map[string]*fakeNetwork{}, taken: "198.18.3.0/24"}
	taken := netip.MustParsePrefix(fake.taken)
	must.Do(t, engineOf(t, fake).EnsureNetwork(t.Context(), Network{Name: "n", Subnets: []netip.Prefix{taken, taken}}))
	if got := fake.list["n"]; got == nil || len(got.IPAM.Config) != 0 || len(fake.asked) != 3 {
		t.Errorf("made %+v after %v", got, fake.asked)
	}
}

// TestNameTaken waits for what an earlier request still makes under the name.
func TestNameTaken(t *testing.T) {
	t.Parallel()
	tries := 0
	e := answering(t, map[string]http.HandlerFunc{"POST /networks/create": func(w http.ResponseWriter, r *http.Request) {
		tries++
		says(map[bool]int{true: http.StatusConflict, false: http.StatusCreated}[tries == 1], `{"Id": "new"}`)(w, r)
	}})
	must.Do(t, e.EnsureNetwork(t.Context(), Network{Name: "kbnode-gpu0"}))
	must.Equal(t, 2, tries)
}
