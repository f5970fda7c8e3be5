package bktest

import (
	"net/http"
	"slices"
	"strings"
)

const (
	clusterName = "Default cluster"
	restAgents  = "/v2/organizations/{org}/agents"
	restCluster = "/v2/organizations/{org}/clusters"
)

// nodeRoutes are the calls about agents, the one cluster and its queues.
func (s *Server) nodeRoutes(get func(string, handler)) {
	put := func(p string, h handler) { s.handle("PUT "+p, 64<<10, s.byAPI, s.limited(h)) }
	post := func(p string, h handler) { s.handle("POST "+p, 64<<10, s.byAPI, s.limited(h)) }
	get(restAgents, s.listAgents)
	get(restAgents+"/{id}", s.withAgent(func(c *call, a *agent) reply {
		return reply{body: s.viewAgent(a, base(c.Request))}
	}))
	put(restAgents+"/{id}/stop", s.withAgent(s.stopAgent))
	put(restAgents+"/{id}/pause", s.withAgent(s.pauseAgent))
	put(restAgents+"/{id}/resume", s.withAgent(func(_ *call, a *agent) reply {
		a.Paused, a.PausedNote = false, ""
		return reply{status: http.StatusNoContent}
	}))
	get(restCluster, func(c *call) reply { return reply{body: []any{s.cluster(c)}} })
	get(restCluster+"/{cluster}", s.inCluster(func(c *call) reply { return reply{body: s.cluster(c)} }))
	get(restCluster+"/{cluster}/queues", s.inCluster(func(c *call) reply {
		page, links := paginate(c, s.queues)
		out := make([]Queue, len(page))
		for i, q := range page {
			out[i] = s.viewQueue(c, q)
		}
		return reply{body: out, header: links}
	}))
	post(restCluster+"/{cluster}/queues", s.inCluster(s.createQueue))
	for verb, paused := range map[string]bool{"pause_dispatch": true, "resume_dispatch": false} {
		post(restCluster+"/{cluster}/queues/{queue}/"+verb, s.inCluster(func(c *call) reply {
			i := slices.IndexFunc(s.queues, func(q *Queue) bool { return q.ID == c.PathValue("queue") })
			if i < 0 {
				return refuse(http.StatusNotFound, "No queue found")
			}
			s.queues[i].DispatchPaused = paused
			return reply{body: s.viewQueue(c, s.queues[i])}
		}))
	}
}

func (s *Server) withAgent(h func(*call, *agent) reply) handler {
	return func(c *call) reply {
		for _, a := range s.agents {
			if a.ID == c.PathValue("id") {
				return h(c, a)
			}
		}
		return refuse(http.StatusNotFound, "No agent found")
	}
}

// viewAgent copies an agent out of the state.
func (s *Server) viewAgent(a *agent, base string) Agent {
	out := a.Agent
	out.MetaData = slices.Clone(a.MetaData)
	out.URL = base + "/v2/organizations/" + s.opts.Org + "/agents/" + a.ID
	out.WebURL = base + "/organizations/" + s.opts.Org + "/agents/" + a.ID
	if a.job != nil {
		j := a.job.Job
		j.WebURL = webURL(base, s.opts.Org, a.job.build) + "#" + j.ID
		out.Job = &j
	}
	return out
}

// listAgents lists the connected agents: like the real API, it omits those that have left.
func (s *Server) listAgents(c *call) reply {
	q := c.URL.Query()
	var found []Agent
	for _, a := range s.agents {
		there := a.ConnectionState == "connected" || a.ConnectionState == "stopping"
		if n := q.Get("name"); n != "" && n != a.Name {
			there = false
		}
		if h := q.Get("hostname"); h != "" && h != a.Hostname {
			there = false
		}
		if id := q.Get("cluster_queue_id"); id != "" {
			there = there && slices.ContainsFunc(s.queues, func(q *Queue) bool {
				return q.ID == id && matches([]string{"queue=" + q.Key}, a.MetaData)
			})
		}
		if there {
			found = append(found, s.viewAgent(a, base(c.Request)))
		}
	}
	page, links := paginate(c, found)
	return reply{body: page, header: links}
}

// stopAgent makes the agent disconnect at its next ping; with force, which is the default,
// it first cancels the agent's job.
func (s *Server) stopAgent(c *call, a *agent) reply {
	req := struct{ Force *bool }{}
	if err := c.decode(&req); err != nil {
		return refuse(http.StatusBadRequest, "stop: %v", err)
	}
	if a.ConnectionState != "connected" && a.ConnectionState != "stopping" {
		return refuse(http.StatusUnprocessableEntity, "Can only stop connected agents")
	}
	a.ConnectionState, a.stop = "stopping", "Stopped by an API call"
	if a.job != nil && (req.Force == nil || *req.Force) {
		b := a.job.build
		s.cancelJob(a.job)
		s.settle(b)
	}
	return reply{status: http.StatusNoContent}
}

func (s *Server) pauseAgent(c *call, a *agent) reply {
	var req struct{ Note string }
	if err := c.decode(&req); err != nil {
		return refuse(http.StatusBadRequest, "pause: %v", err)
	}
	if a.Paused {
		return refuse(http.StatusUnprocessableEntity, "Agent is already paused")
	}
	a.Paused, a.PausedNote = true, req.Note
	return reply{status: http.StatusNoContent}
}

func (s *Server) cluster(c *call) map[string]any {
	url := base(c.Request) + "/v2/organizations/" + s.opts.Org + "/clusters/" + s.clusterID()
	return map[string]any{"id": s.clusterID(), "name": clusterName, "url": url, "queues_url": url + "/queues"}
}

func (s *Server) clusterID() string { return "c1u57e20-0000-4000-8000-000000000001" }

func (s *Server) inCluster(h handler) handler {
	return func(c *call) reply {
		if c.PathValue("cluster") != s.clusterID() {
			return refuse(http.StatusNotFound, "No cluster found")
		}
		return h(c)
	}
}

func (s *Server) viewQueue(c *call, q *Queue) Queue {
	out := *q
	out.URL = base(c.Request) + "/v2/organizations/" + s.opts.Org + "/clusters/" + s.clusterID() + "/queues/" + q.ID
	return out
}

func (s *Server) queue(key string) *Queue {
	i := slices.IndexFunc(s.queues, func(q *Queue) bool { return q.Key == key })
	if i < 0 {
		return nil
	}
	return s.queues[i]
}

// addQueue returns the queue with this key and creates it if needed; nil if the cluster
// already has 50 queues.
func (s *Server) addQueue(key, description string) *Queue {
	if q := s.queue(key); q != nil {
		return q
	}
	if len(s.queues) >= 50 {
		return nil
	}
	q := &Queue{ID: newID(), Key: key, Description: description, CreatedAt: s.now()}
	s.queues = append(s.queues, q)
	return q
}

func (s *Server) queuePaused(rules []string) bool {
	for _, r := range rules {
		if key, ok := strings.CutPrefix(r, "queue="); ok {
			if q := s.queue(key); q != nil && q.DispatchPaused {
				return true
			}
		}
	}
	return false
}

func (s *Server) createQueue(c *call) reply {
	var req struct{ Key, Description string }
	if err := c.decode(&req); err != nil {
		return refuse(http.StatusBadRequest, "queue: %v", err)
	}
	if req.Key == "" || s.queue(req.Key) != nil {
		return refuse(http.StatusUnprocessableEntity, "Validation failed: Key is missing or has already been taken")
	}
	q := s.addQueue(req.Key, req.Description)
	if q == nil {
		return refuse(http.StatusUnprocessableEntity, "Validation failed: a cluster has at most 50 queues")
	}
	return reply{status: http.StatusCreated, body: s.viewQueue(c, q)}
}
