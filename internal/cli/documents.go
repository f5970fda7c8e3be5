package cli

import (
	"github.com/gpu-mode/kbnode/internal/cli/operator"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/bundle"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// What the commands of a node print with --json.
var (
	acceptanceDoc  = term.Document[doctor.Acceptance]{Name: "acceptance", Schema: doctor.Schema}
	bundleDoc      = term.Document[bundleReport]{Name: "bundle", Schema: bundle.Schema}
	configCheckDoc = term.Document[config.Checked]{Name: "config-check", Schema: 1}
	configShowDoc  = term.Document[config.Shown]{Name: "config-show", Schema: 1}
	doctorDoc      = term.Document[*doctor.Report]{Name: "doctor", Schema: doctor.Schema}
	failureDoc     = term.Document[failure]{Name: "error", Schema: 1}
	eventDoc       = term.Document[events.Event]{Name: "event", Schema: 1}
	imageChangeDoc = term.Document[image.Result]{Name: "image-change", Schema: 1}
	imageListDoc   = term.Document[image.List]{Name: "image-list", Schema: 1}
	inventoryDoc   = term.Document[*inventory.Inventory]{Name: "inventory", Schema: inventory.Schema}
	planDoc        = term.Document[planOutput]{Name: "plan", Schema: plan.Schema}
	statusDoc      = term.Document[node.Status]{Name: "status", Schema: 1}
	versionDoc     = term.Document[versionInfo]{Name: "version", Schema: 1}
)

// Documents returns all that commands print with --json, for generating their schemas.
func Documents() []term.Described {
	return append([]term.Described{
		acceptanceDoc, bundleDoc, configCheckDoc, configShowDoc, doctorDoc, eventDoc, imageChangeDoc, imageListDoc, inventoryDoc,
		planDoc, failureDoc, statusDoc, versionDoc,
	}, operator.Documents()...)
}
