package docker

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// helperTime bounds a credential helper, a program of the operator's.
const helperTime = 30 * time.Second

// registryAuth returns the header with the credentials for an image's registry, "" if there are
// none.
func registryAuth(ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("%.120q is not the name of an image", ref)
	}
	f, err := readConfig()
	if err != nil {
		return "", err
	}
	auth, err := credentials(f, reference.Domain(named))
	if err != nil || auth == (registry.AuthConfig{}) {
		return "", err
	}
	return authconfig.Encode(auth)
}

// allAuths returns the credentials of every registry that the file names: a build may begin with
// an image from any of them. It leaves out those that it cannot get, as docker does, and calls skip with the
// reason: most builds need none of them.
func allAuths(skip func(error)) (map[string]registry.AuthConfig, error) {
	f, err := readConfig()
	if err != nil {
		return nil, err
	}
	all := map[string]registry.AuthConfig{}
	hosts := slices.Concat(slices.Collect(maps.Keys(f.AuthConfigs)), slices.Collect(maps.Keys(f.CredentialHelpers)))
	slices.Sort(hosts)
	for _, host := range slices.Compact(hosts) {
		auth, err := credentials(f, host)
		if err != nil {
			skip(err)
		} else if auth != (registry.AuthConfig{}) {
			all[host] = auth
		}
	}
	return all, nil
}

// readConfig reads the configuration of this user's docker command. Without one it is empty.
func readConfig() (*configfile.ConfigFile, error) {
	f, err := config.Load(os.Getenv("DOCKER_CONFIG"))
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("read registry credentials: %w", err)
	}
	if err != nil { // which may contain some of the text
		return nil, fmt.Errorf("read registry credentials: %s is not what docker login writes; fix it, or log in again", f.Filename)
	}
	return f, nil
}

// credentials returns those for a registry, as docker would choose them.
func credentials(f *configfile.ConfigFile, host string) (registry.AuthConfig, error) {
	auth, err := limit.Call("registries", "credential helper for "+host, helperTime, func() (registry.AuthConfig, error) {
		auth, err := f.GetAuthConfig(host)
		return registry.AuthConfig(auth), err
	})
	if late, ok := errors.AsType[*limit.Error](err); ok {
		return registry.AuthConfig{}, fmt.Errorf("read registry credentials: %w", late)
	}
	if err != nil { // which contains what the helper printed
		return registry.AuthConfig{}, fmt.Errorf("read registry credentials: the credential helper for %s fails; fix it in Docker's config.json, or log in again", host)
	}
	return auth, nil
}
