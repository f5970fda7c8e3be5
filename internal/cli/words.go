package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// synonyms are other tools' words for a command: of kubectl, Slurm, Docker, systemctl, git, apt and Buildkite's agent.
var synonyms = map[string][]string{
	"install": {"setup", "init"}, "uninstall": {"remove", "delete", "purge"}, "reconcile": {"apply", "sync", "restart", "reload", "repair"},
	"drain": {"cordon", "pause", "disable", "stop"}, "resume": {"uncordon", "unpause", "enable", "start"},
	"status": {"ps", "ls", "list", "slots", "top", "info", "get", "describe", "show", "stats"},
	"doctor": {"check", "diagnose", "health", "verify", "troubleshoot"}, "logs": {"journal", "journalctl", "tail", "log"}, "events": {"history", "audit"},
	"bundle": {"airgap", "offline", "pack"}, "inventory": {"gpus", "gpu", "devices", "hardware", "topology", "detect", "nvidia-smi", "rocm-smi"}, "upgrade": {"update"}, "image": {"update", "images", "pull"},
	"cancel": {"abort", "kill", "scancel", "stop"}, "submit": {"send", "upload", "sbatch", "srun", "enqueue"}, "config": {"configure", "conf", "settings"},
	"queue": {"queues", "nodes", "agents", "fleet", "jobs", "squeue", "sinfo", "builds"}, "evaluate": {"eval", "test", "run", "bench", "benchmark", "profile", "compare", "diff"},

	"config check": {"validate", "verify", "lint", "test"}, "config show": {"view", "print", "cat", "dump", "list"},
	"image list": {"ls", "show", "inspect", "history"}, "image update": {"pull", "fetch", "upgrade", "refresh"}, "image rollback": {"revert", "undo", "restore"},
	"completion bash": {"sh"}, "pipeline eval": {"fast"}, // it ran docker on the node, which no step can any more
}

// modeWords are the words for kbnode evaluate that also say a mode.
var modeWords = map[string]string{"bench": "benchmark", "benchmark": "benchmark", "profile": "profile"}

// strayFlags names, by command, the flag that a word without one means.
var strayFlags = map[string]string{
	"install": "queue", "plan": "queue", "pipeline": "queue", "upgrade": "agent-version", "doctor": "only", "selftest": "slot", "events": "slot",
	"image build": "dockerfile", "bundle create": "output",
}

const (
	editConfig  = "sudoedit /etc/kbnode/config.yaml, then kbnode config check: the daemon applies it"
	noEnd       = "leave it out, since a drain never ends a job; " + term.EndJob
	checksAll   = "leave it out: all checks run; on a node that is to go live, write sudo kbnode doctor --acceptance"
	noDryRun    = "write sudo kbnode image update --check"
	watch       = "sudo kbnode status --watch"
	ownConfig   = "write your file to /etc/kbnode/config.yaml; kbnode plan --config FILE shows first what it would change"
	grepEvents  = "write kbnode events | grep WORD"
	ownLog      = "this is no slot; write sudo journalctl -u kbnode"
	noDebug     = "leave it out; sudo kbnode doctor --bundle node.tar.gz collects what there is to know of a node"
	follows     = "leave it out: kbnode submit follows its build; to follow it later, write kbnode submit --follow RUN with the run ID that it prints"
	noColor     = "write NO_COLOR=1 before the command, as in NO_COLOR=1 kbnode queue"
	ownName     = "leave it out: the image has the name image.name of the configuration"
	ownLimits   = "time limits are the problem's: set test_timeout, benchmark_timeout and ranked_timeout in its task.yml"
	ownOutput   = "write --workdir out with an empty directory out, where result.json keeps all output"
	sentOutput  = "write --result result.json for a file with all output"
	ownSeed     = "seeds are the problem's: set seed, and that of each test, in its task.yml"
	service     = "the daemon is a service; write sudo systemctl status kbnode, or start, stop or restart in place of status"
	followRun   = "write kbnode submit --follow RUN, with the run ID that kbnode submit printed"
	nameRun     = "write kbnode cancel RUN, with the run ID that kbnode submit printed"
	ownTemplate = "kbnode submit --problem PROBLEM --template Python prints a template"
	oneNode     = "jobs go to a queue, where Buildkite chooses the agent; for one node, give a pipeline the steps of kbnode pipeline --queue b200 --agent node=NAME"
)

var nameExample = "write kbnode evaluate --problem NAME; the names are " + strings.Join(task.Examples(), ", ")

// answers say what to type for words and flags of other tools, after the command that they were typed to.
var answers = map[string]string{
	"login": "no login exists; for a node, write sudo kbnode install --token-file FILE, and for a queue, set BUILDKITE_API_TOKEN",
	"man":   "write man kbnode, or kbnode --help", "docs": "write man kbnode, or kbnode --help",
	"support": "write sudo kbnode doctor --bundle node.tar.gz", "metrics": "set metrics.listen in /etc/kbnode/config.yaml, and read http://ADDRESS/metrics",
	"exec":     "a slot runs jobs and nothing else; to send one, write kbnode submit, and to see what runs, sudo kbnode logs gpu3",
	"template": ownTemplate,
	"init":     "for a node, write sudo kbnode install; for a submission, " + ownTemplate,
	"examples": nameExample, "evaluate --list": nameExample, "submit --list": nameExample,
	"follow": followRun, "submit --status": followRun, "submit --watch": followRun, "submit --logs": followRun,
	"submit --cancel": nameRun, "submit --abort": nameRun, "submit --stop": nameRun,
	"results": "write kbnode submit --follow RUN for the result of a run; leaderboards are kernelbot's",
	"rm":      "for a slot, write sudo kbnode drain gpu3, and for all of kbnode, sudo kbnode uninstall",
	"service": service, "daemon start": service, "daemon stop": service, "daemon restart": service, "daemon status": service, "logs kbnode": ownLog, "logs node": ownLog, "logs daemon": ownLog, "* --metrics": "set metrics.listen in /etc/kbnode/config.yaml",

	"acceptance": "write sudo kbnode doctor --acceptance", "preflight": "write sudo kbnode doctor --preflight",
	"reboot": "write sudo kbnode drain --all --reboot",
	"reset":  "write sudo kbnode drain gpu3 --wait, and then what docs/health.md says under Resetting a GPU",
	"rotate": "write sudo kbnode install --token-file FILE",

	"config edit": "write " + editConfig, "config apply": ownConfig, "config load": ownConfig, "config set": "write " + editConfig, "config get": "write kbnode config show",
	"image rm": "kbnode removes old images itself; image.keep in /etc/kbnode/config.yaml says how many stay",

	"status -w": "write " + watch, "status -f": "write " + watch,
	"image load": "write sudo kbnode image update --bundle FILE", "image import": "write sudo kbnode image update --bundle FILE",
	"image update --dry-run": noDryRun, "image update -n": noDryRun,
	"bundle create --platform": "write --arch arm64, after docker pull --platform linux/arm64",

	"logs --grep":   "write sudo kbnode logs | grep WORD",
	"logs -u":       "write sudo kbnode logs gpu3, or sudo journalctl -u kbnode",
	"events --grep": grepEvents, "events --level": grepEvents, "events --kind": grepEvents, "events --type": grepEvents,
	"install -n":       "write sudo kbnode install --dry-run",
	"install --force":  "write --adopt to replace files that kbnode did not write, and --yes to be asked nothing",
	"install --config": ownConfig, "install -c": ownConfig, "install -f": ownConfig,
	"uninstall -n": "write sudo kbnode uninstall --dry-run", "uninstall --force": "write --now to end running jobs, and --yes to be asked nothing",
	"reconcile --dry-run": "write kbnode plan, which shows what would change",
	"install --root":      "write kbnode plan --root FILE, which shows what install would do there",
	"plan --dry-run":      "leave it out: kbnode plan writes nothing",
	"drain --force":       noEnd, "drain --now": noEnd, "drain --kill": noEnd, "drain --cancel": noEnd, "drain -f": noEnd,
	"doctor --full": checksAll, "doctor --all": checksAll, "doctor --deep": checksAll,
	"evaluate --compare": "leave it out, and name both files: kbnode evaluate old.py new.py", "submit --compare": "leave it out, and name both files: kbnode submit old.py new.py",
	"pipeline --gpu": "write kbnode pipeline --queue b200: the agents of a queue have one kind of GPU",
	"queue --queue":  "write queues without it: kbnode queue b200",
	"queue --gpu":    "write the name of a queue: kbnode queue b200",
	"queue --slot":   "write kbnode queue --node NAME, which says why slots take no jobs; --agents shows each slot",
	"submit --node":  oneNode, "submit --agent": oneNode, "submit --gpu-index": oneNode, "submit --slot": oneNode,
	"e2e --node": oneNode, "e2e --agent": oneNode, "e2e --gpu-index": oneNode, "e2e --slot": oneNode,
	"schema":         "schemas of what --json prints are in /usr/share/kbnode/schemas on a node, and in packaging/schemas of kbnode's source",
	"image build -t": ownName, "image build --tag": ownName,
	"evaluate --timeout": ownLimits, "evaluate --limit": ownLimits,
	"completion --shell": "write kbnode completion bash",
	"evaluate -v":        ownOutput, "evaluate --verbose": ownOutput, "evaluate --debug": ownOutput, "evaluate --keep": ownOutput,
	"evaluate --result": ownOutput, "evaluate --save": ownOutput, "evaluate --log": ownOutput,
	"submit -v": sentOutput, "submit --verbose": sentOutput, "submit --debug": sentOutput, "submit --save": sentOutput, "submit --log": sentOutput,
	"evaluate --seed": ownSeed, "submit --seed": ownSeed,
	"cancel --all": nameRun, "cancel --queue": nameRun, "cancel --yes": "leave it out: kbnode cancel asks nothing", "cancel -y": "leave it out: kbnode cancel asks nothing",
	"* -v": noDebug, "* --verbose": noDebug, "* --debug": noDebug,
	"submit --wait": follows, "submit --no-wait": follows, "submit --detach": follows, "submit -d": follows,
	"* --no-color": noColor, "* --color": noColor,
}

// sameAnswers are other words that answers has a line for.
var sameAnswers = map[string]string{
	"token": "login", "auth": "login", "rotate-token": "rotate", "reset-gpu": "reset", "gpu-reset": "reset", "accept": "acceptance",
	"diag": "support", "sos": "support", "documentation": "docs",
	"ssh": "exec", "attach": "exec", "shell": "exec", "templates": "template", "new": "template", "problems": "examples", "problem": "examples", "schemas": "schema",
	"result": "results", "leaderboard": "results", "image prune": "image rm", "image remove": "image rm", "image delete": "image rm",
	"submissions": "follow", "submission": "follow", "runs": "follow", "watch": "follow",
	"systemctl": "service", "daemon-reload": "service",
}

// sameFlags are other tools' words for a flag, the first that a command has.
var sameFlags = map[string][]string{
	"leaderboard": {"problem"}, "task": {"problem"}, "p": {"problem", "pipeline"}, "organization": {"org"}, "q": {"queue"},
	"o": {"json"}, "output": {"json"}, "format": {"json"}, "out": {"json"}, "j": {"json"}, "check": {"only", "dry-run"},
	"diff": {"dry-run"}, "simulate": {"dry-run"}, "noop": {"dry-run"}, "preview": {"dry-run"},
	"for": {"until"}, "follow": {"watch"}, "w": {"watch", "workdir"}, "m": {"reason"}, "message": {"reason"}, "comment": {"reason"},
	"c": {"config"}, "f": {"dockerfile"}, "file": {"dockerfile"}, "filter": {"node"}, "assume-yes": {"yes"},
}

// flagWord explains a first word in the place of a submission that is no file, but the name of a flag without its hyphens, or
// a value of one: evaluate list, evaluate benchmark.
func (h hints) flagWord(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || !strings.Contains(cmd.Use, "SUBMISSION") || isFile(args[0]) {
		return nil
	}
	word, i := args[0], slices.Index(h.Typed, args[0])
	says := fmt.Sprintf("%q is no file", text.Line(word, 60))
	if answer := answers[pathOf(cmd)+" --"+word]; answer != "" {
		return term.Usagef("%s; %s", says, answer)
	}
	if i < 0 {
		return nil
	}
	var lines [][]string
	if cmd.Flags().Lookup(word) != nil {
		lines = append(lines, h.With(i, "--"+word))
	}
	for _, value := range []string{word, modeWords[word]} {
		for _, flag := range valueFlags(cmd, value) {
			lines = append(lines, h.With(i, "--"+flag, value))
		}
	}
	if slices.Contains(synonyms[cmd.Name()], word) { // evaluate run mine.py
		lines = append(lines, h.With(i))
	}
	if line := accepted(lines...); line != nil {
		return h.Advise(says, line)
	}
	return nil
}

// runFlags are flags for what kbnode cancel takes as a word.
var runFlags = []string{"run-id", "run", "id", "follow", "job"}

// fileFlags are flags of other tools for what kbnode takes as a word.
var fileFlags = []string{"file", "f", "submission", "input", "kernel", "script"}
