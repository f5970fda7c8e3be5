package config

import "github.com/gpu-mode/kbnode/internal/lazy"

// hidden stands for what is not shown. It is well in a URL and in a regular expression.
const hidden = "xxxxx"

var (
	urlLogin     = lazy.Regexp(`(?s)^([A-Za-z][A-Za-z0-9+.-]*://)?.*@`)
	urlQuery     = lazy.Regexp(`(?s)([?#]).+$`)
	patternLogin = lazy.Regexp(`(:(?:\\?/){2})([^/\s\[\]()|]+)@`)
)

// hideURL takes the user, the password, and what follows the path out of a URL: a
// signed one has its signature there. It rather takes too much, since a password
// may have any character in it and a URL may be none.
func hideURL(s string) string {
	return urlQuery().ReplaceAllString(urlLogin().ReplaceAllString(s, "${1}"+hidden+"@"), "${1}"+hidden)
}

// hidePattern takes users and passwords out of the URLs of a regular expression.
// The user git is everybody's.
func hidePattern(s string) string {
	return patternLogin().ReplaceAllStringFunc(s, func(m string) string {
		if part := patternLogin().FindStringSubmatch(m); part[2] != "git" {
			return part[1] + hidden + "@"
		}
		return m
	})
}

// hide takes the secrets out of the value of a key.
func hide(key string, value any) (shown any, some bool) {
	switch v := value.(type) {
	case string:
		if key == "agent.endpoint" || key == "agent.download_url" {
			shown := hideURL(v)
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
