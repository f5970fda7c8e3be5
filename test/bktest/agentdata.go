package bktest

import (
	"fmt"
	"net/http"
	"path"
	"slices"
)

type artifactBatch struct {
	ID        string     `json:"id"`
	Artifacts []Artifact `json:"artifacts"`
}

func (s *Server) createArtifacts(c *call, req artifactBatch) reply {
	j := c.job
	if len(j.files)+len(req.Artifacts) > maxArtifacts {
		return refuse(http.StatusUnprocessableEntity, "A job may upload at most %d artifacts", maxArtifacts)
	}
	prefix := fmt.Sprintf("%s/%s/%s/%s/", org, j.build.ID, j.ID, newID())
	ids := make([]string, 0, len(req.Artifacts))
	for _, f := range req.Artifacts {
		if f.FileSize > maxArtifact {
			return refuse(http.StatusUnprocessableEntity, "%s is larger than %d bytes", f.Path, maxArtifact)
		}
		a := &artifact{job: j, key: prefix + f.Path}
		a.Artifact = Artifact{ID: newID(), JobID: j.ID, State: "new", Path: f.Path, Filename: path.Base(f.Path), FileSize: f.FileSize, SHA1: f.SHA1}
		j.files = append(j.files, a)
		ids = append(ids, a.ID)
	}
	return reply{status: http.StatusCreated, body: map[string]any{
		"id": req.ID, "artifact_ids": ids,
		"upload_instructions": map[string]any{
			"data":   map[string]string{"key": prefix + "${artifact:path}"},
			"action": map[string]string{"url": base(c.Request), "method": "POST", "path": storePath, "file_input": "file"},
		},
	}}
}

func (s *Server) updateArtifacts(c *call, req artifactBatch) reply {
	for _, u := range req.Artifacts {
		i := slices.IndexFunc(c.job.files, func(a *artifact) bool { return a.ID == u.ID })
		if i < 0 || u.State != "finished" && u.State != "error" {
			return refuse(http.StatusUnprocessableEntity, "artifact %q cannot become %q", u.ID, u.State)
		}
		c.job.files[i].State = u.State
	}
	return reply{}
}

// metrics is what autoscalers request, and the cheapest check of a token:
// https://buildkite.com/docs/apis/agent-api/metrics
func (s *Server) metrics(*call) reply {
	queues := map[string]any{}
	for _, q := range s.queues {
		total := 0
		for _, a := range s.agents {
			if a.live() && matches([]string{"queue=" + q.Key}, a.MetaData) {
				total++
			}
		}
		queues[q.Key] = map[string]int{"total": total}
	}
	return reply{body: map[string]any{
		"organization": map[string]string{"slug": org}, "agents": map[string]any{"queues": queues},
	}}
}
