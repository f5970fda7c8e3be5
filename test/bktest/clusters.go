package bktest

import (
	"fmt"
	"net/http"
	"slices"
)

// NewPipeline is the body of a request for a pipeline.
type NewPipeline struct {
	Name          string `json:"name"`
	Repository    string `json:"repository"`
	Configuration string `json:"configuration"`
	ClusterID     string `json:"cluster_id"`
}

// clusterRoutes are the supported calls about clusters, and the one that makes a pipeline:
// https://buildkite.com/docs/apis/rest-api/clusters
func (s *Server) clusterRoutes(get func(string, handler)) {
	const clusters, queues = "/v2/organizations/{org}/clusters", "/v2/organizations/{org}/clusters/{cluster}/queues"
	id := func(i int) string { return fmt.Sprintf("42f1a7da-812d-4430-93d8-1cc7c33a6b%02d", i) }
	names := s.opts.Clusters
	if names == nil {
		names = []string{"Default cluster"}
	}
	get(clusters, func(c *call) reply {
		found := []map[string]string{}
		for i, name := range names {
			found = append(found, map[string]string{"id": id(i), "name": name})
		}
		return paginate(c, found)
	})
	in := func(h func(*call) reply) handler {
		return func(c *call) reply {
			if c.PathValue("cluster") != id(0) {
				return refuse(http.StatusNotFound, "No cluster found")
			}
			return h(c)
		}
	}
	queue := func(key string) map[string]any {
		q := map[string]any{"id": "id-of-" + key, "key": key, "hosted": slices.Contains(s.opts.Hosted, key), "hosted_agents": nil, "dispatch_paused": false, "dispatch_paused_note": nil}
		if note, ok := s.opts.Paused[key]; ok {
			q["dispatch_paused"], q["dispatch_paused_note"] = true, note
		}
		if q["hosted"] == true {
			q["hosted_agents"] = map[string]string{"instance_shape": "LINUX_AMD64_2X4"}
		}
		return q
	}
	get(queues, func(c *call) reply {
		found := []map[string]any{} // all are in the first cluster
		for i := range names {
			if c.PathValue("cluster") != id(i) {
				continue
			}
			for _, key := range slices.Concat(s.opts.Hosted, s.queues) {
				if i == 0 {
					found = append(found, queue(key))
				}
			}
			return paginate(c, found)
		}
		return refuse(http.StatusNotFound, "No cluster found")
	})
	post := func(p string, h handler) { s.handle("POST "+p, s.byAPI, s.limited(h)) }
	post(queues, parsed(func(c *call, req struct {
		Key string `json:"key"`
	}) reply {
		return in(func(*call) reply {
			if req.Key == "" || slices.Contains(s.queues, req.Key) || slices.Contains(s.opts.Hosted, req.Key) {
				return refuse(http.StatusUnprocessableEntity, "Key has already been taken")
			}
			s.addQueue(req.Key)
			return reply{status: http.StatusCreated, body: queue(req.Key)}
		})(c)
	}))
	post(clusters+"/{cluster}/tokens", in(func(*call) reply {
		s.tokens = append(s.tokens, "bkct_"+newID())
		return reply{status: http.StatusCreated, body: map[string]string{"id": newID(), "token": s.tokens[len(s.tokens)-1]}}
	}))
	post("/v2/organizations/{org}/pipelines", parsed(func(_ *call, p NewPipeline) reply {
		if p.ClusterID != id(0) || p.Name == "" || p.Repository == "" || p.Configuration == "" {
			return refuse(http.StatusUnprocessableEntity, "Validation failed")
		}
		s.made = append(s.made, p)
		return reply{status: http.StatusCreated, body: map[string]string{"slug": p.Name}}
	}))
}

// Made returns the pipelines and the agent tokens that REST has made.
func (s *Server) Made() ([]NewPipeline, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.made), slices.Clone(s.tokens)
}
