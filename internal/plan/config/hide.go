package config

import (
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// hidden replaces what is not shown. It is valid in a URL and in a regular expression.
const hidden = "xxxxx"

var (
	urlLogin     = lazy.Regexp(`(?s)^([A-Za-z][A-Za-z0-9+.-]*://)?.*@`)
	urlQuery     = lazy.Regexp(`(?s)([?#]).+$`)
	patternLogin = lazy.Regexp(`(:(?:\\?/){2})([^/\s\[\]()|]+)@`)
)

// HideURL removes the user, the password, and all that follows the path from a URL:
// a signed one has its signature there. It removes too much rather than too little,
// since a password may contain any character and the text may not be a URL.
func HideURL(s string) string {
	return urlQuery().ReplaceAllString(urlLogin().ReplaceAllString(s, "${1}"+hidden+"@"), "${1}"+hidden)
}

// HideWebhook is HideURL for an address whose path may be the secret.
func HideWebhook(s string) string {
	if strings.HasPrefix(s, "/") { // a file's
		return s
	}
	s = urlLogin().ReplaceAllString(s, "${1}"+hidden+"@")
	host := strings.Index(s, "://") + len("://")
	if host < len("://") { // no scheme
		host = 0
	}
	if end := host + strings.IndexAny(s[host:], "/?#") + 1; end > host && end < len(s) {
		return s[:end] + hidden
	}
	return s
}

// warning says that the address of notify is shown to everyone; "" for none.
func (n Notify) warning() string {
	if n.URL == "" || HideWebhook(n.URL) == n.URL {
		return ""
	}
	return "notify.url: everyone on the node can read the file, and anyone who has the address can post to it; write it into a file that only root can read, and that file's path here, such as /etc/kbnode/notify-url"
}

// hidePattern removes users and passwords from the URLs in a regular expression,
// except the user git, which is public.
func hidePattern(s string) string {
	return patternLogin().ReplaceAllStringFunc(s, func(m string) string {
		if part := patternLogin().FindStringSubmatch(m); part[2] != "git" {
			return part[1] + hidden + "@"
		}
		return m
	})
}

// hide removes the secrets from the value of a key. some reports whether there were any.
func hide(key string, value any) (shown any, some bool) {
	switch v := value.(type) {
	case string:
		switch key {
		case "agent.endpoint", "agent.download_url":
			shown := HideURL(v)
			return shown, shown != v
		case "notify.url":
			shown := HideWebhook(v)
			return shown, shown != v
		}
	case Patterns:
		shown, some := hide(key, []string(v))
		return shown, some
	case []string:
		list := []string{}
		for _, s := range v {
			list = append(list, hidePattern(s))
			some = some || list[len(list)-1] != s
		}
		return list, some
	}
	return value, false
}
