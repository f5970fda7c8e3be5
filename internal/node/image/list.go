package image

import (
	"context"
	"errors"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
)

// Row is one image in the JSON of kbnode image list.
type Row struct {
	Role string `json:"role"` // "current", "previous", "candidate", "dropped"
	Image
}

// List is the JSON of kbnode image list.
type List struct {
	Name      string    `json:"name"`
	StandsFor string    `json:"stands_for"` // the ID of the image that jobs get now; "" for none
	Images    []Row     `json:"images"`
	Refused   []Refusal `json:"refused"`
}

// List returns the images that the node keeps and refuses.
func (u *Updater) List(ctx context.Context) (List, error) {
	st, err := Read(u.Dir)
	if err != nil {
		return List{}, err
	}
	l := List{Name: u.Name, Images: []Row{}, Refused: st.Refused}
	switch have, err := u.Engine.Image(ctx, u.Name); {
	case err == nil:
		l.StandsFor = have.ID
	case !errors.Is(err, docker.ErrNotFound):
		return List{}, err
	}
	add := func(role string, images ...Image) {
		for _, i := range images {
			l.Images = append(l.Images, Row{role, i})
		}
	}
	if st.Current != nil {
		add("current", *st.Current)
	}
	if st.Candidate != nil {
		add("candidate", *st.Candidate)
	}
	add("previous", st.Previous...)
	add("dropped", st.Drop...)
	return l, nil
}
