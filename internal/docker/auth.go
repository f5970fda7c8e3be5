package docker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/moby/moby/api/types/registry"
)

const (
	maxAuthFile = 1 << 20 // bytes
	maxSecret   = 64 << 10
	helperTime  = 30 * time.Second
	// hubKey is the key of Docker Hub in Docker's configuration.
	hubKey = "https://index.docker.io/v1/"
)

// authFile is what kbnode reads of Docker's own config.json.
type authFile struct {
	Auths       map[string]registry.AuthConfig `json:"auths"`
	CredsStore  string                         `json:"credsStore"`
	CredHelpers map[string]string              `json:"credHelpers"`
}

// readAuthFile reads the configuration of this user's docker command. Without one it is empty.
func readAuthFile() (f authFile, err error) {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return f, nil //nolint:nilerr // a service without a home has no credentials
		}
		dir = filepath.Join(home, ".docker")
	}
	name := filepath.Join(dir, "config.json")
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("read registry credentials: %w", err)
	}
	defer func() { _ = file.Close() }()
	// A decoder's error may contain some of the text.
	if json.NewDecoder(io.LimitReader(file, maxAuthFile)).Decode(&f) != nil {
		return f, fmt.Errorf("read registry credentials: %s is not the JSON that docker login writes; fix it, or log in again", name)
	}
	return f, nil
}

// registryAuth returns the header with the credentials for an image's registry, "" if there are
// none.
func registryAuth(ctx context.Context, ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("%.120q is not the name of an image", ref)
	}
	f, err := readAuthFile()
	if err != nil {
		return "", err
	}
	auth, err := f.credentials(ctx, reference.Domain(named))
	if err != nil || auth == (registry.AuthConfig{}) {
		return "", err
	}
	text, err := json.Marshal(auth) //nolint:gosec // the header that the engine reads them from
	if err != nil {
		return "", errors.New("write registry credentials")
	}
	return base64.URLEncoding.EncodeToString(text), nil
}

// allAuths returns the credentials of every registry that the file names: a build may begin with
// an image from any of them.
func allAuths(ctx context.Context) (map[string]registry.AuthConfig, error) {
	f, err := readAuthFile()
	if err != nil {
		return nil, err
	}
	all := map[string]registry.AuthConfig{}
	var errs []error
	add := func(host string) {
		key := host
		if host = bareHost(host); host == "docker.io" || host == "index.docker.io" {
			key, host = hubKey, "docker.io"
		}
		auth, err := f.credentials(ctx, host)
		if errs = append(errs, err); err == nil && auth != (registry.AuthConfig{}) {
			all[key] = auth
		}
	}
	for host := range f.Auths {
		add(host)
	}
	for host := range f.CredHelpers {
		add(host)
	}
	return all, errors.Join(errs...)
}

// credentials returns the credentials for a registry, as docker would choose them: from the registry's
// own helper, the default helper, or the file.
func (f authFile) credentials(ctx context.Context, host string) (registry.AuthConfig, error) {
	key := host
	if host == "docker.io" {
		key = hubKey
	}
	if helper := f.CredHelpers[host]; helper != "" {
		return askHelper(ctx, helper, key)
	}
	if f.CredsStore != "" {
		return askHelper(ctx, f.CredsStore, key)
	}
	for name, auth := range f.Auths {
		if name != key && bareHost(name) != host {
			continue
		}
		if auth.Auth != "" {
			text, err := base64.StdEncoding.DecodeString(auth.Auth)
			user, password, ok := strings.Cut(strings.TrimRight(string(text), "\x00"), ":")
			if err != nil || !ok {
				return registry.AuthConfig{}, fmt.Errorf("read registry credentials: those for %s are not what docker login writes; log in again", host)
			}
			auth.Username, auth.Password, auth.Auth = user, password, ""
		}
		if auth != (registry.AuthConfig{}) {
			auth.ServerAddress = key
		}
		return auth, nil
	}
	return registry.AuthConfig{}, nil
}

// bareHost returns a key of the file without what old versions wrote around the host.
func bareHost(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, _, _ := strings.Cut(key, "/")
	return host
}

var helperForm = lazy.Regexp(`^[A-Za-z0-9._-]{1,64}$`)

// askHelper asks a credential helper, a program of the operator's. Its standard error may hold a
// secret and is not passed on.
func askHelper(ctx context.Context, helper, server string) (registry.AuthConfig, error) {
	if !helperForm().MatchString(helper) {
		return registry.AuthConfig{}, fmt.Errorf("%.80q is not the name of a credential helper; fix Docker's config.json", helper)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-credential-"+helper, "get")
	cmd.Stdin = strings.NewReader(server)
	out := &limited{}
	cmd.Stdout = out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if err != nil {
		if strings.Contains(out.String(), "credentials not found") {
			return registry.AuthConfig{}, nil
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
			err = fmt.Errorf("exit status %d", exit.ExitCode())
		}
		return registry.AuthConfig{}, fmt.Errorf("ask docker-credential-%s for %s: %w", helper, server, err)
	}
	var said struct{ Username, Secret string }
	if json.Unmarshal(out.Bytes(), &said) != nil {
		return registry.AuthConfig{}, fmt.Errorf("ask docker-credential-%s for %s: its answer is not JSON", helper, server)
	}
	if said.Username == "<token>" {
		return registry.AuthConfig{IdentityToken: said.Secret, ServerAddress: server}, nil
	}
	return registry.AuthConfig{Username: said.Username, Password: said.Secret, ServerAddress: server}, nil
}

// limited keeps the first maxSecret bytes that are written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxSecret - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
