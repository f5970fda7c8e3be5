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
	"status": {"ps", "ls", "list", "slots", "slot", "top", "info", "get", "describe", "show", "stats"},
	"doctor": {"check", "diagnose", "health", "verify", "troubleshoot"}, "logs": {"journal", "journalctl", "tail", "log"}, "events": {"history", "audit"},
	"bundle": {"airgap", "offline", "pack"}, "inventory": {"gpus", "gpu", "devices", "hardware", "topology", "detect", "facts", "nvidia-smi", "rocm-smi"}, "upgrade": {"update"}, "image": {"update", "images", "pull"},
	"cancel": {"abort", "kill", "scancel", "stop"}, "submit": {"send", "upload", "sbatch", "srun", "enqueue"}, "config": {"configure", "conf", "settings"},
	"queue": {"queues", "node", "nodes", "agents", "fleet", "jobs", "squeue", "sinfo", "builds"}, "evaluate": {"eval", "test", "run", "bench", "benchmark", "profile", "compare", "diff"},

	"config check": {"validate", "verify", "lint", "test"}, "config show": {"view", "print", "cat", "dump", "list", "get"},
	"image list": {"ls", "show", "inspect", "history"}, "image build": {"create", "make"}, "bundle create": {"make", "build", "pack"}, "bundle check": {"verify", "test", "inspect"}, "queue create": {"add", "new", "make"}, "image update": {"pull", "fetch", "upgrade", "refresh"}, "image rollback": {"revert", "undo", "restore"},
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
	noAsk       = "leave it out: it asks nothing"
	noPlanned   = "leave it out: kbnode plan shows what would change, and changes nothing"
	again       = "leave it out: each install brings the node to its configuration, and sudo kbnode upgrade changes its agent"
	errorsOnly  = "write sudo journalctl -p err -u 'buildkite-agent-gpu*' -u 'kbnode-job-gpu*'"
	onNode      = "type it on that node, without this flag: sudo kbnode drain --all"
	ownMIG      = "kbnode changes no MIG mode; set it with nvidia-smi, as in docs/shapes.md, and then write sudo kbnode install"
	ownUpgrade  = "to upgrade kbnode itself, replace it with apt or dnf; for its agent, write sudo kbnode upgrade --agent-version VERSION"
	oneNode     = "jobs go to a queue, where Buildkite chooses the agent; for one node, give a pipeline the steps of kbnode pipeline --queue b200 --agent node=NAME"
)

var nameExample = "write kbnode evaluate --problem NAME; the names are " + strings.Join(task.Examples(), ", ")

// answers say what to type for words and flags of other tools, after the command that they were typed to.
var answers = map[string]string{
	"set": "write " + editConfig, "edit": "write " + editConfig,
	"docker": "kbnode runs no docker; write sudo docker and the rest, or sudo kbnode status for the slots and their jobs",
	"mig":    ownMIG, "install --mig": ownMIG, "plan --mig": ownMIG,
	"demo":     "write kbnode submit --queue b200 --hello",
	"rollback": "for the image, write sudo kbnode image rollback; for the agent, sudo kbnode upgrade --agent-version VERSION; for kbnode, install its old package",
	"wait":     "write sudo kbnode drain gpu3 --wait to wait for a slot's job, or kbnode submit --follow RUN for a run",
	"scontrol": "for a node, write sudo kbnode drain --all on it; for a slot, sudo kbnode drain gpu3",
	"login":    "no login exists; for a node, write sudo kbnode install --token-file FILE, and for a queue, set BUILDKITE_API_TOKEN",
	"man":      "write man kbnode, or kbnode --help", "docs": "write man kbnode, or kbnode --help",
	"support": "write sudo kbnode doctor --bundle node.tar.gz", "metrics": "set metrics.listen in /etc/kbnode/config.yaml, and read http://ADDRESS/metrics",
	"exec":     "a slot runs jobs and nothing else; to send one, write kbnode submit, and to see what runs, sudo kbnode logs gpu3",
	"template": ownTemplate,
	"init":     "for a node, write sudo kbnode install; for a submission, " + ownTemplate,
	"examples": nameExample, "evaluate --list": nameExample, "submit --list": nameExample,
	"follow": followRun, "submit --status": followRun, "submit --watch": followRun, "submit --logs": followRun,
	"submit --cancel": nameRun, "submit --abort": nameRun, "submit --stop": nameRun,
	"results":        "write kbnode submit --follow RUN for the result of a run; leaderboards are kernelbot's",
	"rm":             "for a slot, write sudo kbnode drain gpu3, and for all of kbnode, sudo kbnode uninstall",
	"upgrade kbnode": ownUpgrade, "upgrade agent": ownUpgrade, "upgrade --kbnode": ownUpgrade, "upgrade latest": ownUpgrade,
	"service": service, "reconcile kbnode": service, "daemon start": service, "daemon stop": service, "daemon restart": service, "daemon status": service, "logs kbnode": ownLog, "logs node": ownLog, "logs daemon": ownLog, "logs docker": "this is no slot; write sudo journalctl -u docker", "* --metrics": "set metrics.listen in /etc/kbnode/config.yaml",

	"acceptance": "write sudo kbnode doctor --acceptance", "preflight": "write sudo kbnode doctor --preflight",
	"reboot": "write sudo kbnode drain --all --reboot",
	"reset":  "write sudo kbnode drain gpu3 --wait, and then what docs/health.md says under Resetting a GPU",
	"rotate": "write sudo kbnode install --token-file FILE",

	"config edit": "write " + editConfig, "config apply": ownConfig, "config load": ownConfig, "config set": "write " + editConfig, "config get": "write kbnode config show", "config diff": "write kbnode plan, which shows what would change",
	"config init": "write sudo kbnode install --queue b200; it needs a file only for what has no flag",
	"image push":  "kbnode pushes no image; write docker push", "queue rm": "kbnode deletes no queue; do it in Buildkite, under Agents, the cluster, Queues",
	"bundle extract":  "install and image update read it as it is, with --bundle FILE; for kbnode alone, write tar -xf FILE kbnode",
	"pipeline upload": "it prints to standard output: write kbnode pipeline | buildkite-agent pipeline upload",
	"image rm":        "kbnode removes old images itself; image.keep in /etc/kbnode/config.yaml says how many stay",

	"status -w": "write " + watch, "status -f": "write " + watch,
	"image load": "write sudo kbnode image update --bundle FILE", "image import": "write sudo kbnode image update --bundle FILE",
	"image update --dry-run": noDryRun, "image update -n": noDryRun,
	"bundle create --platform": "write --arch arm64, after docker pull --platform linux/arm64",

	"logs --grep":   "write sudo kbnode logs | grep WORD",
	"logs -u":       "write sudo kbnode logs gpu3, or sudo journalctl -u kbnode",
	"events --grep": grepEvents, "events --level": grepEvents, "events --kind": grepEvents, "events --type": grepEvents,
	"install -n":      "write sudo kbnode install --dry-run",
	"install --force": "write --adopt to replace files that kbnode did not write, and --yes to be asked nothing",
	"uninstall -n":    "write sudo kbnode uninstall --dry-run", "uninstall --force": "write --now to end running jobs, and --yes to be asked nothing",
	"reconcile --dry-run": "write kbnode plan, which shows what would change",
	"install --root":      "write kbnode plan --root FILE, which shows what install would do there",
	"plan --dry-run":      noPlanned,
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
	"evaluate -v": ownOutput, "evaluate --verbose": ownOutput, "evaluate --debug": ownOutput, "evaluate --keep": ownOutput,
	"evaluate --result": ownOutput, "evaluate --save": ownOutput, "evaluate --log": ownOutput,
	"submit -v": sentOutput, "submit --verbose": sentOutput, "submit --debug": sentOutput, "submit --save": sentOutput, "submit --log": sentOutput,
	"evaluate --seed": ownSeed, "submit --seed": ownSeed,
	"cancel --yes": "leave it out: kbnode cancel asks nothing", "cancel -y": "leave it out: kbnode cancel asks nothing",
	"* -v": noDebug, "* --verbose": noDebug, "* --debug": noDebug,
	"* --quiet": "leave it out; >/dev/null after the line hides what it prints",
	"* --yes":   noAsk, "* -y": noAsk, "* --no-input": noAsk, "* --non-interactive": noAsk,
	"plan -n": noPlanned, "plan --diff": noPlanned, "plan --target": "leave it out: a plan is of the whole node",
	"install --proxy":         "write sudo HTTPS_PROXY=http://PROXY:PORT kbnode install",
	"install --agent-version": "leave it out, and then write sudo kbnode upgrade --agent-version VERSION",
	"install --exclude":       "name the GPUs to use, such as --gpus 0-2,4-7", "plan --exclude": "name the GPUs to use, such as --gpus 0-2,4-7",
	"install --json":      "write kbnode plan --json, which shows what install would do",
	"install --no-docker": "leave it out: jobs run in Docker's containers",
	"install --reinstall": again, "install --state": again, "install --update": again, "install --upgrade": again,
	"uninstall --purge": "leave it out: it removes all that kbnode set up", "uninstall --wait": "leave it out: without --now, it waits for jobs",
	"uninstall --keep-config": "copy /etc/kbnode/config.yaml first: kbnode removes it if install wrote it",
	"upgrade --rollback":      "name the version to return to: write sudo kbnode upgrade --agent-version VERSION",
	"image rollback --to":     "leave it out, since it returns to the image before; for another, write sudo kbnode image update IMAGE",
	"image update --force":    "write --now to fetch it while jobs run", "image update --tag": "write the whole name: sudo kbnode image update ghcr.io/gpu-mode/kernelbot:TAG",
	"plan --apply":       "plan changes nothing; write sudo kbnode reconcile, or sudo kbnode install on a new node",
	"config check --fix": "leave it out: kbnode does not edit the file, and says what to write",
	"notify --test":      "leave it out: kbnode notify sends a test",
	"events --until":     "leave it out; kbnode events --json has the times, for jq",
	"logs --level":       errorsOnly, "logs -p": errorsOnly, "logs --priority": errorsOnly,
	"drain --undo": "write sudo kbnode resume gpu3", "drain --node": onNode, "drain --ignore-daemonsets": onNode,
	"resume --node": "type it on that node: sudo kbnode resume --all", "resume --force": "leave it out; write --mended if a GPU was reset and kbnode did not notice",
	"status --node": "write kbnode queue --node NAME", "status --queue": "write kbnode queue NAME",
	"cancel --all": nameRun, "cancel --queue": nameRun, "submit --gres": "leave it out: a job has the GPU of its slot",
	"version --short": "leave it out; kbnode version --json has the number alone",
	"submit --wait":   follows, "submit --no-wait": follows, "submit --detach": follows, "submit -d": follows,
	"* --no-color": noColor, "* --color": noColor,
}

// sameAnswers are other words that answers has a line for.
var sameAnswers = map[string]string{
	"token": "login", "auth": "login", "rotate-token": "rotate", "reset-gpu": "reset", "gpu-reset": "reset", "accept": "acceptance",
	"diag": "support", "sos": "support", "documentation": "docs",
	"ssh": "exec", "attach": "exec", "shell": "exec", "templates": "template", "new": "template", "problems": "examples", "problem": "examples", "schemas": "schema",
	"result": "results", "leaderboard": "results", "image prune": "image rm", "image remove": "image rm", "image delete": "image rm",
	"submissions": "follow", "submission": "follow", "runs": "follow", "watch": "follow",
	"queue delete": "queue rm", "queue remove": "queue rm", "config update": "config edit", "config change": "config edit", "config reload": "config apply",
	"config import": "config apply", "config create": "config init", "config new": "config init",
	"self-update": "upgrade kbnode", "selfupdate": "upgrade kbnode", "upgrade buildkite-agent": "upgrade agent",
	"set-token": "rotate", "hello": "demo", "revert": "rollback", "undo": "rollback", "prometheus": "metrics", "exporter": "metrics", "nvidia-mig": "mig",
	"image publish": "image push", "bundle unpack": "bundle extract", "bundle install": "bundle extract", "bundle load": "bundle extract", "systemctl": "service", "daemon-reload": "service",
}

// sameFlags are other tools' words for a flag, the first that a command has.
var sameFlags = map[string][]string{
	"leaderboard": {"problem"}, "task": {"problem"}, "p": {"problem", "queue", "pipeline"}, "organization": {"org"}, "q": {"queue"},
	"o": {"json"}, "output": {"json"}, "format": {"json"}, "out": {"json"}, "j": {"json"}, "check": {"only", "dry-run"},
	"repair": {"fix"}, "autofix": {"fix"}, "heal": {"fix"}, "apply": {"fix"},
	"diff": {"dry-run"}, "simulate": {"dry-run"}, "noop": {"dry-run"}, "preview": {"dry-run"},
	"for": {"until"}, "follow": {"watch"}, "w": {"watch", "workdir"}, "m": {"reason"}, "message": {"reason"}, "comment": {"reason"},
	"a": {"all"}, "reset": {"mended"}, "hostname": {"node"}, "name": {"node"}, "n": {"node"}, "partition": {"queue"}, "c": {"config"}, "f": {"dockerfile", "config"}, "file": {"dockerfile", "config"}, "filter": {"node"}, "assume-yes": {"yes"},
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

// wordFlags are flags of other tools for what kbnode takes as a word, by what its help calls that.
var wordFlags = map[string][]string{
	"RUN": {"run-id", "run", "id", "follow", "job"}, "NAME": {"name"}, "IMAGE": {"image", "name"},
	"FILE": append([]string{"input"}, configWords...), "SUBMISSION": {"file", "f", "submission", "input", "kernel", "script"},
	"SLOT": {"slot", "slots", "s", "gpu", "gpus", "g", "gpu-index", "index", "device", "d"},
}

// configWords are flags of other tools for a configuration file.
var configWords = []string{"config", "c", "file", "filename", "f", "values"}

// ownFile are the commands that read the node's configuration file, and no other.
var ownFile = []string{"install", "reconcile"}
