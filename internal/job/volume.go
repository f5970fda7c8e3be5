package job

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// nodePaths are what public pipelines mount of a node, and what to write instead. The first one that matches counts.
var nodePaths = []struct {
	form   func() *regexp.Regexp
	advice string
}{
	{lazy.Regexp(`^/dev/shm(/|$)`), "a job has its own /dev/shm, as large as the slot allows; leave it out, and set shm-size for less"},
	{lazy.Regexp(`^/dev/(nvidia|dri|kfd|infiniband|gdrdrv|dxg|accel)|^/proc/driver/nvidia`), "each job has the devices of its slot's GPUs; leave it out"},
	{lazy.Regexp(`^/(usr|lib|lib64|opt)/.*(nvidia|cuda|libnv)|^(/var)?/run/nvidia|^/usr/lib/wsl`), "each job has the driver's libraries and programs, such as nvidia-smi; leave it out, and have CUDA itself in the image"},
	{lazy.Regexp(`^/opt/(rocm|amdgpu)`), "a job has the devices of its slot's GPUs; leave it out, and have ROCm in the image"},
	{lazy.Regexp(`^/dev(/|$)`), "a job has no other devices than its slot's GPUs; leave it out"},
	{lazy.Regexp(`^(/var)?/run/(docker|podman|containerd|crio|balena|user/[^/]*/(docker|podman))|^/var/lib/(docker|containerd)|/\.docker(/|$)|docker\.sock$`), "a job cannot use the node's Docker or its logins; leave it out, and build and push images elsewhere"},
	{lazy.Regexp(`^(/usr/bin/docker|/usr/local/bin/docker|/usr/libexec/docker)`), "a job cannot use the node's Docker; leave it out, and build and push images elsewhere"},
	{lazy.Regexp(`/buildkite-agent$`), "the node gives no programs to jobs; write mount-buildkite-agent: true for this one, which has no token, and use artifact_paths for artifacts"},
	{lazy.Regexp(`buildkite-agent/(hooks|plugins|builds|git-mirrors)|^/etc/buildkite-agent`), "the agent's files are not for jobs; write .:/workdir for the checkout"},
	{lazy.Regexp(`(ssh|gnupg|aws|gcloud|kube|azure|netrc|gitconfig|git-credentials|SSH_AUTH_SOCK|secrets?)(/|$)|^/(var/)?run/(secrets|user|vault)|ssh-agent`), "the node has no keys or logins for jobs; leave it out, and pass what the job may have in environment"},
	{lazy.Regexp(`^/etc/(passwd|group|shadow|hosts|hostname|resolv\.conf|localtime|timezone|ssl|pki|ca-certificates)|^/usr/(share/)?(local/share/)?(zoneinfo|ca-certificates)`), "a container has its own; leave it out, set TZ in environment for a time zone, and have certificates in the image"},
	{lazy.Regexp(`^/(proc|sys)(/|$)|^/(lib/modules|usr/src|boot)|^/$`), "a job cannot see the node's system; leave it out"},
	{lazy.Regexp(`cache|^(~|/root|/home/[^/]*|\$\{?HOME\}?)/?$|^/(data|datasets|mnt|scratch|models|shared|nfs|nvme[0-9]*)(/|$)|huggingface|\.(npm|cargo|m2|gradle|conda)`),
		"nothing of the node stays for other jobs; leave it out, copy what it needs into the image, or write " + plan.OldCacheDir + "/NAME:/PLACE for an empty directory"},
	{lazy.Regexp(`^/(var/)?tmp(/|$)|^/run$`), "the node's temporary files are not for jobs; write tmpfs: [/tmp], or leave it out, since a container has its own"},
	{lazy.Regexp(`^(\$\{?(PWD|BUILDKITE_BUILD_CHECKOUT_PATH|BUILDKITE_BUILD_PATH|WORKSPACE|GITHUB_WORKSPACE)\}?|\$\(pwd\)|` + "`pwd`" + `)(/|$)`), "it is a path of the node; write ./ for the checkout, such as .:/workdir"},
}

var typedMount = lazy.Regexp(`^(type|source|src|target|dst|destination)=`)

// volume takes "source:target" with an optional ":mode".
func (r *reader) volume(name, text string, expands bool) {
	if typedMount().MatchString(text) {
		r.refuse(name, "%.80q is not source:target; write it so, such as ./data:/data:ro, or an empty directory as tmpfs: [/data]", text)
		return
	}
	text, ok := r.expand(name, text, expands)
	if !ok {
		return
	}
	parts := strings.Split(text, ":")
	source, m := parts[0], Mount{}
	if len(parts) > 3 {
		r.refuse(name, "%.80q is not source:target or source:target:mode; write one of them", text)
		return
	}
	for mode := range strings.SplitSeq(strings.Join(parts[min(len(parts), 2):], ""), ",") {
		switch mode {
		case "", "rw", "z", "Z", "cached", "delegated", "consistent", "private", "rprivate":
		case "ro":
			m.ReadOnly = true
		default:
			r.refuse(name, `%.80q: the mode must be "ro" or "rw"; write one of them`, text)
		}
	}
	if why := badSource(source, len(parts) == 1); why != "" {
		r.refuse(name, "%.80q: %s", text, why)
		return
	}
	m.Source, m.Target = path.Clean(source), tidy(parts[1])
	r.Mounts = append(r.Mounts, m)
}

// badSource returns what to write instead of a source that is not in the checkout; "" if it is. An anonymous volume is
// a target alone.
func badSource(source string, anonymous bool) string {
	clean := tidy(source)
	checkout := source == "." || strings.HasPrefix(source, "./")
	cache := clean == plan.OldCacheDir || strings.HasPrefix(clean, plan.OldCacheDir+"/")
	switch {
	case slices.Contains(strings.Split(source, "/"), ".."):
		return "it has a .. element; write the path without it"
	case !anonymous && (checkout || cache):
		return ""
	}
	for _, p := range nodePaths {
		if p.form().MatchString(clean) {
			return p.advice
		}
	}
	switch {
	case anonymous && path.IsAbs(source):
		return "an anonymous volume; write tmpfs: [" + clean + "] for an empty directory in memory, or nothing: a container's own files end with it"
	case anonymous:
		return "it is not source:target or source:target:mode; write one of them"
	case path.IsAbs(source) || strings.HasPrefix(source, "~") || strings.HasPrefix(source, "$"):
		return "it is a path of the node; write a path in the checkout, such as ./data:/data, or copy it into the image"
	}
	return "it is a named volume, which would stay on the node; write ./ before it for a directory of the checkout, or tmpfs for an empty one"
}
