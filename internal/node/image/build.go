package image

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// building names an image between its build and its adoption.
const building = ownNames + "building"

// Variant returns which of kbnode's own images suits the GPUs of a node's slots: "cuda",
// "rocm" or "cpu".
func Variant(slots []plan.JobPolicy) (string, error) {
	variants := map[string]bool{}
	for _, p := range slots {
		variants[cmp.Or(map[string]string{"nvidia": "cuda", "amd": "rocm"}[p.Vendor], "cpu")] = true
	}
	switch all := slices.Sorted(maps.Keys(variants)); len(all) {
	case 0:
		return "", ErrNoNode
	case 1:
		return all[0], nil
	default:
		return "", fmt.Errorf("its slots need different ones: %s", strings.Join(all, ", "))
	}
}

// Build builds the image on the node, and points the name to it if a canary passes.
func (u *Updater) Build(ctx context.Context, src Source, o Options) (Result, error) {
	release, err := u.open(ctx)
	if err != nil {
		return Result{}, err
	}
	defer release()
	tagged, err := u.tagged(ctx)
	if err != nil {
		return Result{}, err
	}
	if err = u.room(ctx, 0); err == nil {
		err = u.whileIdle(ctx, o, "the build", func(ctx context.Context) error {
			archive := src.archive()
			defer func() { _ = archive.Close() }()
			u.say("building %s from %s", u.Name, src.Name)
			return u.Engine.Build(ctx, building, archive, src.Dockerfile, src.Args, u.report)
		})
	}
	if err != nil {
		return u.laterIfBusy(err)
	}
	have, err := u.Engine.Image(ctx, building)
	if err != nil {
		return Result{}, err
	}
	var r Result
	if cur := u.state.Current; cur.passed() && cur.ID == have.ID && tagged != nil && tagged.ID == cur.ID {
		r = u.result(ActionNone, "the current image is the same")
		if err := u.prune(ctx); err != nil {
			return r, err
		}
	} else {
		u.state.pursue(Image{ID: have.ID, Size: have.Size, Since: now()})
		if err := u.save(); err != nil {
			return Result{}, err
		}
		if err := u.hold(ctx, have); err != nil {
			return Result{}, err
		}
		if r, err = u.prove(ctx, tagged, o); err != nil {
			return Result{}, err
		}
	}
	return r, u.Engine.Untag(ctx, building)
}
