package cli

// synonyms are other tools' words for a command.
var synonyms = map[string][]string{
	"install": {"setup", "init"}, "uninstall": {"remove", "delete", "purge"}, "reconcile": {"apply", "sync", "restart", "reload"},
	"drain": {"cordon", "pause", "disable", "stop"}, "resume": {"uncordon", "unpause", "enable", "start"},
	"status": {"ps", "ls", "list", "slots", "top", "info"}, "doctor": {"check", "diagnose", "health", "verify"}, "logs": {"journal", "tail", "log"}, "events": {"history", "audit"},
	"inventory": {"gpus", "gpu", "devices", "hardware", "topology", "detect"}, "upgrade": {"update"}, "image": {"update", "images", "pull"}, "cancel": {"abort", "kill"},
	"queue": {"queues", "nodes", "agents", "fleet", "jobs"}, "evaluate": {"eval", "test", "run", "bench", "benchmark"},
}

// strayFlags names, by command, the flag that a word without one means.
var strayFlags = map[string]string{
	"install": "queue", "plan": "queue", "pipeline": "queue", "upgrade": "agent-version", "doctor": "only", "selftest": "slot", "events": "slot",
}

const (
	editConfig = "sudoedit /etc/kbnode/config.yaml, then kbnode config check: the daemon applies it"
	lastLines  = "sudo journalctl -n 500 -u 'buildkite-agent-gpu*'"
	watch      = "sudo kbnode status --watch"
)

// answers say what to type for words and flags of other tools, after the command that they were typed to.
var answers = map[string]string{
	"login": "no login exists; for a node, write sudo kbnode install --token-file FILE, and for a queue, set BUILDKITE_API_TOKEN",
	"man":   "write man kbnode, or kbnode --help", "docs": "write man kbnode, or kbnode --help",
	"support": "write sudo kbnode doctor --bundle node.tar.gz", "metrics": "set metrics.listen in /etc/kbnode/config.yaml, and read http://ADDRESS/metrics",
	"config edit": "write " + editConfig, "config set": "write " + editConfig, "config get": "write kbnode config show",
	"status -w": "write " + watch, "status -f": "write " + watch,
	"logs -n": "write " + lastLines, "logs --lines": "write " + lastLines, "logs --tail": "write " + lastLines,
	"logs --since":    "write sudo journalctl --since -2h -u 'buildkite-agent-gpu*'",
	"events -n":       "write kbnode events | tail -n 20",
	"events --tail":   "write kbnode events | tail -n 20",
	"install -n":      "write sudo kbnode install --dry-run",
	"install --force": "write --adopt to replace files that kbnode did not write, and --yes to be asked nothing",
	"uninstall -n":    "write sudo kbnode uninstall --dry-run", "uninstall --force": "write --now to end running jobs, and --yes to be asked nothing",
	"drain --force":  "write sudo kbnode drain without it: a drain never ends a job, and sudo kbnode uninstall --now ends all",
	"pipeline --gpu": "write kbnode pipeline --queue b200: the agents of a queue have one kind of GPU",
	"queue --queue":  "write queues without it: kbnode queue b200",
}

// sameAnswers are other words that answers has a line for.
var sameAnswers = map[string]string{"token": "login", "auth": "login", "diag": "support", "bundle": "support", "sos": "support", "documentation": "docs"}

// sameFlags are other tools' words for a flag.
var sameFlags = map[string]string{
	"leaderboard": "problem", "task": "problem", "organization": "org", "q": "queue", "o": "json", "output": "json", "format": "json", "check": "only",
}
