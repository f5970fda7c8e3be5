package config

import "gopkg.in/yaml.v3"

// Contacts returns what a configuration file says of who learns of a node: its name, and the groups metrics and notify. The rest
// of the file may be wrong. ok is false if these are wrong, too, or there are neither.
func Contacts(name string, text []byte) (c Config, ok bool) {
	var all map[string]yaml.Node
	if len(text) > maxBytes || yaml.Unmarshal(text, &all) != nil {
		return Config{}, false
	}
	some := map[string]yaml.Node{}
	for _, key := range []string{"node", "metrics", "notify"} {
		if value, there := all[key]; there {
			some[key] = value
			ok = ok || key != "node"
		}
	}
	doc, err := yaml.Marshal(some)
	if err == nil {
		c, err = Parse(name, doc)
	}
	return c, ok && err == nil
}
