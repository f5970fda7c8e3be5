package docker

import (
	"encoding/base64"
	"encoding/json"
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
