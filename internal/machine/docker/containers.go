package docker

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/moby/moby/client"
)

const (
	// stopTime is how long a container has to end by itself: killing it in the middle of a
	// kernel leaks GPU memory on ROCm. Docker's default of ten would keep the slot from its next
	// job for longer.
	stopTime = 5 * time.Second
	// removeDeadline bounds the removal of one container, its stop included.
	removeDeadline = time.Minute
)

// Container is a container that runs.
type Container struct {
	ID      string // 64 hexadecimal digits
	Name    string // without the leading slash
	Image   string // its name as it was given
	Command string
	Labels  map[string]string
}

// Running lists the containers that run. It inspects none, so that none can hold up the answer.
func (e *Engine) Running(ctx context.Context) ([]Container, error) {
	return e.list(ctx, client.ContainerListOptions{})
}

func (e *Engine) list(ctx context.Context, options client.ContainerListOptions) ([]Container, error) {
	ctx, cancel := bounded(ctx, requestDeadline)
	defer cancel()
	list, err := e.api.ContainerList(ctx, options)
	if err != nil {
		return nil, e.wrap("list containers", err)
	}
	found := make([]Container, len(list.Items))
	for i, c := range list.Items {
		found[i] = Container{ID: c.ID, Name: c.ID, Labels: c.Labels, Image: c.Image, Command: c.Command}
		for _, name := range c.Names {
			name = strings.TrimPrefix(name, "/")
			if !strings.Contains(name, "/") { // not as a link of another calls it
				found[i].Name = name
			}
		}
	}
	return found, nil
}

// RemoveNamed removes, as Remove does, the containers whose names begin with prefix and match, whether they
// run or not. The engine tells of no others: the labels of one may have megabytes.
func (e *Engine) RemoveNamed(ctx context.Context, prefix string, matches func(name string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, removeDeadline)
	defer cancel()
	// The filter is a regular expression for the name, with the slash before it or without.
	all, err := e.list(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("name", "^/?"+regexp.QuoteMeta(prefix))})
	for _, c := range all {
		if matches(c.Name) {
			err = errors.Join(err, e.Remove(ctx, c.ID))
		}
	}
	return err
}

// Remove stops, kills and removes a container, which has five seconds to end by itself, as Discard does.
func (e *Engine) Remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeDeadline)
	defer cancel()
	stopErr := e.Stop(ctx, id, stopTime)
	if err := e.Discard(ctx, id); err != nil {
		return errors.Join(err, stopErr)
	}
	return nil // whatever Stop says
}
