package bktest

import (
	"fmt"
	"maps"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
)

// dataRoutes are what commands inside a job call: meta-data, annotations,
// artifacts, more steps, tokens.
func (s *Server) dataRoutes() {
	s.handle("POST /v3/jobs/{job}/artifacts", maxJSON, s.byJob, s.createArtifacts)
	s.handle("PUT /v3/jobs/{job}/artifacts", maxJSON, s.byJob, s.updateArtifacts)
	s.handle("GET /v3/builds/{build}/artifacts/search", 0, s.byBuild, s.searchArtifacts)
	for scope, allow := range map[string]func(*call) (reply, bool){"jobs/{job}": s.byJob, "builds/{build}": s.byBuild} {
		for op, h := range map[string]handler{"set": s.metaSet, "get": s.metaGet, "exists": s.metaExists, "keys": s.metaKeys} {
			s.handle("POST /v3/"+scope+"/data/"+op, 2*maxMetaValue, allow, h)
		}
	}
	s.handle("POST /v3/jobs/{job}/annotations", 2<<20, s.byJob, ok)
	s.handle("DELETE /v3/jobs/{job}/annotations/{context}", 0, s.byJob, ok)
	s.handle("POST /v3/jobs/{job}/pipelines", maxJSON, s.byJob, s.uploadPipeline)
	s.handle("GET /v3/jobs/{job}/pipelines/{upload}", 0, s.byJob, s.uploadState)
	s.handle("POST /v3/jobs/{job}/oidc/tokens", 64<<10, s.byJob, func(*call) reply {
		return refuse(http.StatusUnprocessableEntity, "This server issues no OIDC tokens")
	})
	s.handle("GET /v3/jobs/{job}/secrets", 0, s.byJob, func(*call) reply {
		return refuse(http.StatusNotFound, "This server keeps no secrets")
	})
}

// byBuild admits every token for a job of the build.
func (s *Server) byBuild(c *call) (reply, bool) {
	for _, b := range s.builds {
		if b.ID != c.PathValue("build") {
			continue
		}
		for _, j := range b.jobs {
			c.SetPathValue("job", j.ID)
			if no, ok := s.byJob(c); ok {
				return no, ok
			}
		}
	}
	return unauthorized()
}

func (s *Server) createArtifacts(c *call) reply {
	var req struct {
		ID        string `json:"id"`
		Artifacts []struct {
			Path     string `json:"path"`
			GlobPath string `json:"glob_path"`
			FileSize int64  `json:"file_size"`
			SHA1     string `json:"sha1sum"`
			SHA256   string `json:"sha256sum"`
		} `json:"artifacts"`
	}
	if err := c.decode(&req); err != nil {
		return refuse(http.StatusBadRequest, "artifacts: %v", err)
	}
	j := c.job
	if len(j.files)+len(req.Artifacts) > maxArtifacts {
		return refuse(http.StatusUnprocessableEntity, "A job may upload at most %d artifacts", maxArtifacts)
	}
	prefix := fmt.Sprintf("%s/%s/%s/%s/", s.opts.Org, j.build.ID, j.ID, newID())
	ids := make([]string, 0, len(req.Artifacts))
	for _, f := range req.Artifacts {
		if f.FileSize > maxArtifact {
			return refuse(http.StatusUnprocessableEntity, "%s is larger than %d bytes", f.Path, maxArtifact)
		}
		slash := strings.ReplaceAll(f.Path, `\`, "/")
		a := &artifact{job: j, key: prefix + f.Path}
		a.Artifact = Artifact{
			ID: newID(), JobID: j.ID, State: "new", Path: f.Path, Dirname: path.Dir(slash), Filename: path.Base(slash),
			MimeType: cmpOr(mime.TypeByExtension(path.Ext(slash)), "application/octet-stream"),
			FileSize: f.FileSize, GlobPath: f.GlobPath, SHA1: f.SHA1, SHA256: f.SHA256,
		}
		j.files = append(j.files, a)
		ids = append(ids, a.ID)
	}
	policy, signature := s.uploadPolicy(prefix)
	return reply{status: http.StatusCreated, body: map[string]any{
		"id": req.ID, "artifact_ids": ids,
		"upload_instructions": map[string]any{
			"data":   map[string]string{"key": prefix + "${artifact:path}", "policy": policy, "signature": signature},
			"action": map[string]string{"url": s.storeBase(c.Request), "method": "POST", "path": storePath, "file_input": "file"},
		},
	}}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (s *Server) updateArtifacts(c *call) reply {
	var req struct {
		Artifacts []struct{ ID, State string } `json:"artifacts"`
	}
	if err := c.decode(&req); err != nil {
		return refuse(http.StatusBadRequest, "artifacts: %v", err)
	}
	for _, u := range req.Artifacts {
		i := slices.IndexFunc(c.job.files, func(a *artifact) bool { return a.ID == u.ID })
		if i < 0 || u.State != "finished" && u.State != "error" {
			return refuse(http.StatusUnprocessableEntity, "artifact %q cannot become %q", u.ID, u.State)
		}
		c.job.files[i].State = u.State
	}
	return reply{}
}

func (s *Server) searchArtifacts(c *call) reply {
	q := c.URL.Query()
	found := []map[string]any{}
	for _, j := range c.job.build.jobs {
		if scope := q.Get("scope"); scope != "" && scope != j.ID && scope != j.Name && scope != j.StepKey {
			continue
		}
		if j.Retried && q.Get("include_retried_jobs") != "true" {
			continue
		}
		for _, f := range j.files {
			if f.State == "finished" && globMatch(q.Get("query"), f.Path) {
				found = append(found, map[string]any{
					"id": f.ID, "job_id": f.JobID, "path": f.Path, "file_size": f.FileSize, "sha1sum": f.SHA1,
					"sha256sum": f.SHA256, "created_at": f.job.CreatedAt, "url": s.signedURL(c.Request, f.key),
				})
			}
		}
	}
	return reply{body: found}
}

// globMatch supports * within a path element, and ** at the end of a pattern across them.
func globMatch(glob, name string) bool {
	if head, _, ok := strings.Cut(glob, "**"); ok {
		return strings.HasPrefix(name, head)
	}
	yes, err := path.Match(glob, name)
	return err == nil && yes
}

type metaData struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func (s *Server) metaSet(c *call) reply {
	var kv metaData
	md := c.job.build.MetaData
	if err := c.decode(&kv); err != nil || kv.Key == "" || len(kv.Value) > maxMetaValue || len(md) >= maxMetaKeys {
		return refuse(http.StatusUnprocessableEntity, "meta-data: a key and at most %d bytes are needed", maxMetaValue)
	}
	md[kv.Key] = kv.Value
	return reply{}
}

func (s *Server) metaGet(c *call) reply {
	var kv metaData
	if err := c.decode(&kv); err != nil {
		return refuse(http.StatusBadRequest, "meta-data: %v", err)
	}
	v, ok := c.job.build.MetaData[kv.Key]
	if !ok {
		return refuse(http.StatusNotFound, "No key %q found", kv.Key)
	}
	return reply{body: metaData{kv.Key, v}}
}

func (s *Server) metaExists(c *call) reply {
	var kv metaData
	if err := c.decode(&kv); err != nil {
		return refuse(http.StatusBadRequest, "meta-data: %v", err)
	}
	_, ok := c.job.build.MetaData[kv.Key]
	return reply{body: map[string]bool{"exists": ok}}
}

func (s *Server) metaKeys(c *call) reply {
	return reply{body: slices.AppendSeq([]string{}, maps.Keys(c.job.build.MetaData))}
}

// uploadPipeline adds the steps of `buildkite-agent pipeline upload`, which has already
// interpolated them.
func (s *Server) uploadPipeline(c *call) reply {
	var req struct {
		UUID     string `json:"uuid"`
		Pipeline any    `json:"pipeline"`
	}
	if err := c.decode(&req); err != nil || req.UUID == "" {
		return refuse(http.StatusUnprocessableEntity, "pipeline upload: want uuid and pipeline")
	}
	b := c.job.build
	if _, again := b.uploads[req.UUID]; !again {
		steps, err := parseSteps(req.Pipeline)
		if err != nil {
			return refuse(http.StatusUnprocessableEntity, "pipeline upload: %v", err)
		}
		if len(b.jobs)+len(steps) > maxSteps || !c.job.open() {
			return refuse(http.StatusUnprocessableEntity, "pipeline upload: the build takes no more steps")
		}
		top, _ := req.Pipeline.(map[string]any)
		env, err := stringMap(top["env"])
		if err != nil {
			return refuse(http.StatusUnprocessableEntity, "pipeline upload: env: %v", err)
		}
		for _, st := range steps {
			merged := maps.Clone(env)
			if merged == nil {
				merged = map[string]string{}
			}
			maps.Copy(merged, st.env)
			st.env = merged
			s.addJob(b, st)
		}
		b.uploads[req.UUID] = "applied"
		s.settle(b)
	}
	return reply{status: http.StatusAccepted, header: map[string]string{
		"Location":    fmt.Sprintf("%s/v3/jobs/%s/pipelines/%s", base(c.Request), c.job.ID, req.UUID),
		"Retry-After": "0",
	}}
}

func (s *Server) uploadState(c *call) reply {
	state, ok := c.job.build.uploads[c.PathValue("upload")]
	if !ok {
		return refuse(http.StatusNotFound, "No such upload")
	}
	return reply{body: map[string]string{"state": state}}
}

// metrics is what autoscalers request, and the cheapest check of a token:
// https://buildkite.com/docs/apis/agent-api/metrics
func (s *Server) metrics(*call) reply {
	agents := func(queue string) map[string]int {
		m := map[string]int{"idle": 0, "busy": 0, "total": 0}
		for _, a := range s.agents {
			if !a.live() || queue != "" && !matches([]string{"queue=" + queue}, a.MetaData) {
				continue
			}
			m["total"]++
			if a.job == nil {
				m["idle"]++
			} else {
				m["busy"]++
			}
		}
		return m
	}
	jobs := func(queue string) map[string]int {
		m := map[string]int{"scheduled": 0, "running": 0, "waiting": 0, "total": 0}
		for _, b := range s.builds {
			for _, j := range b.jobs {
				if !j.open() || queue != "" && !slices.Contains(j.step.rules, "queue="+queue) {
					continue
				}
				m["total"]++
				if j.begun() {
					m["running"]++
				} else {
					m["scheduled"]++
				}
			}
		}
		return m
	}
	aq, jq := map[string]any{}, map[string]any{}
	for _, q := range s.queues {
		aq[q.Key], jq[q.Key] = agents(q.Key), jobs(q.Key)
	}
	with := func(m map[string]int, queues map[string]any) map[string]any {
		out := map[string]any{"queues": queues}
		for k, v := range m {
			out[k] = v
		}
		return out
	}
	return reply{body: map[string]any{
		"organization": map[string]string{"slug": s.opts.Org}, "cluster": map[string]string{"name": clusterName},
		"agents": with(agents(""), aq), "jobs": with(jobs(""), jq),
	}}
}
