package bktest

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"
)

const restPipeline = "/v2/organizations/{org}/pipelines/{pipeline}"

// restRoutes are the supported calls of REST API version 2.
func (s *Server) restRoutes() {
	get := func(p string, h handler) { s.handle("GET "+p, s.byAPI, s.limited(h)) }
	get("/v2/organizations/{org}/builds", s.listBuilds)
	get(restPipeline, func(*call) reply { return reply{body: map[string]string{"slug": slug, "configuration": s.opts.Steps}} })
	get(restPipeline+"/builds", s.listBuilds)
	get(restPipeline+"/builds/{number}", s.withBuild(func(c *call, b *build) reply { return reply{body: render(c, b)} }))
	s.handle("POST "+restPipeline+"/builds", s.byAPI, s.limited(parsed(s.createBuild)))
	s.handle("PUT "+restPipeline+"/builds/{number}/cancel", s.byAPI, s.limited(s.withBuild(s.cancelBuild)))
	get(restPipeline+"/builds/{number}/jobs/{id}/log", s.withJob(jobLog))
	get(restPipeline+"/builds/{number}/artifacts", s.withBuild(listArtifacts))
	get(restPipeline+"/builds/{number}/jobs/{id}/artifacts/{artifact}/download", s.withJob(downloadArtifact))
	s.clusterRoutes(get)
	get("/v2/organizations/{org}/agents", func(c *call) reply {
		var found []Agent
		for _, a := range s.agents { // like the real API, it omits those that have left
			if a.ConnectionState == "connected" || a.ConnectionState == "stopping" {
				found = append(found, viewAgent(a, base(c.Request)))
			}
		}
		return paginate(c, found)
	})
}

// byAPI checks the API token, and the organization and pipeline of paths that name them.
func (s *Server) byAPI(c *call) (reply, bool) {
	if credentials(c.Request, "Bearer") != DefaultAPIToken {
		return refuse(http.StatusUnauthorized, "Authentication required. Please supply a valid API Access Token: https://buildkite.com/docs/apis/rest-api#authentication"), false
	}
	if named := c.PathValue("org"); named != "" && named != org {
		return refuse(http.StatusNotFound, "No organization found"), false
	}
	if named := c.PathValue("pipeline"); named != "" && named != slug {
		return refuse(http.StatusNotFound, "No pipeline found"), false
	}
	return reply{}, true
}

// limited counts a request against the rate limit and reports it in the headers:
// https://buildkite.com/docs/apis/rest-api/rate-limits
func (s *Server) limited(h handler) handler {
	return func(c *call) reply {
		now := time.Now()
		if now.Sub(s.window) >= time.Minute {
			s.window, s.used = now, 0
		}
		s.used++
		limit, reset := s.opts.RateLimit, int(time.Minute-now.Sub(s.window)+time.Second-1)/int(time.Second)
		if limit == 0 {
			limit = max(200, s.used+1)
		}
		a := reply{}
		if s.used > limit {
			s.over++
			a = refuse(http.StatusTooManyRequests, "You have exceeded your API rate limit. Please wait before making more requests.")
		} else {
			a = h(c)
		}
		if a.header == nil {
			a.header = map[string]string{}
		}
		a.header["RateLimit-Limit"] = strconv.Itoa(limit)
		a.header["RateLimit-Remaining"] = strconv.Itoa(max(limit-s.used, 0))
		a.header["RateLimit-Reset"] = strconv.Itoa(reset)
		return a
	}
}

func (s *Server) withBuild(h func(*call, *build) reply) handler {
	return func(c *call) reply {
		for _, b := range s.builds {
			if strconv.Itoa(b.Number) == c.PathValue("number") {
				return h(c, b)
			}
		}
		return refuse(http.StatusNotFound, "No build found")
	}
}

func (s *Server) withJob(h func(*call, *job) reply) handler {
	return s.withBuild(func(c *call, b *build) reply {
		for _, j := range b.jobs {
			if j.ID == c.PathValue("id") {
				return h(c, j)
			}
		}
		return refuse(http.StatusNotFound, "No job found")
	})
}

func (s *Server) createBuild(c *call, nb NewBuild) reply {
	if nb.Commit == "" || nb.Branch == "" {
		return refuse(http.StatusUnprocessableEntity, "Commit and branch are required")
	}
	b, err := s.create(nb)
	if err != nil {
		return refuse(http.StatusUnprocessableEntity, "%v", err)
	}
	return reply{status: http.StatusCreated, body: render(c, b)}
}

func (s *Server) cancelBuild(c *call, b *build) reply {
	if b.Finished() {
		return refuse(http.StatusUnprocessableEntity, "Build can't be canceled because it's already finished.")
	}
	cancel(b)
	return reply{body: render(c, b)}
}

var metaFilter = regexp.MustCompile(`^meta_data\[(.+)\]$`)

func (s *Server) listBuilds(c *call) reply {
	q := c.URL.Query()
	var found []Build
	for _, b := range slices.Backward(s.builds) {
		keep := true
		for k, want := range q {
			var have string
			switch m := metaFilter.FindStringSubmatch(k); {
			case m != nil:
				have = b.MetaData[m[1]]
			case k == "state" || k == "state[]":
				have = b.State
			default:
				continue
			}
			keep = keep && slices.Contains(want, have)
		}
		if keep {
			found = append(found, render(c, b))
		}
	}
	return paginate(c, found)
}

// render returns the build as the query of c requests it.
func render(c *call, b *build) Build {
	return view(b, base(c.Request), c.URL.Query().Get("include_retried_jobs") == "true")
}

// viewAgent copies an agent out of the state.
func viewAgent(a *agent, base string) Agent {
	out := a.Agent
	if a.job != nil {
		j := a.job.Job
		j.WebURL = webURL(base, a.job.build) + "#" + j.ID
		out.Job = &j
	}
	return out
}

// view copies a build out of the state, with links below base.
func view(b *build, base string, retried bool) Build {
	out := b.Build
	out.Env, out.MetaData = maps.Clone(b.Env), maps.Clone(b.MetaData)
	out.WebURL = webURL(base, b)
	for _, j := range b.jobs {
		if !j.Retried || retried {
			out.Jobs = append(out.Jobs, viewJob(j, base))
		}
	}
	return out
}

func viewJob(j *job, base string) Job {
	out := j.Job
	out.WebURL = webURL(base, j.build) + "#" + j.ID
	if j.agent != nil {
		a := j.agent.Agent
		out.Agent = &a
	}
	return out
}

func jobLog(_ *call, j *job) reply { return reply{body: map[string]string{"content": string(j.log())}} }

func viewArtifact(c *call, a *artifact) Artifact {
	out := a.Artifact
	out.DownloadURL = fmt.Sprintf("%s/v2/organizations/%s/pipelines/%s/builds/%d/jobs/%s/artifacts/%s/download",
		base(c.Request), org, slug, a.job.build.Number, a.JobID, a.ID)
	return out
}

func listArtifacts(c *call, b *build) reply {
	q := c.URL.Query()
	var found []Artifact
	for _, j := range b.jobs {
		for _, f := range j.files {
			has := func(key, value string) bool { return q.Get(key) == "" || q.Get(key) == value }
			if has("state", f.State) && has("path", f.Path) {
				found = append(found, viewArtifact(c, f))
			}
		}
	}
	return paginate(c, found)
}

// downloadArtifact redirects the client to the store.
func downloadArtifact(c *call, j *job) reply {
	i := slices.IndexFunc(j.files, func(a *artifact) bool { return a.ID == c.PathValue("artifact") && a.State == "finished" })
	if i < 0 {
		return refuse(http.StatusNotFound, "No artifact found")
	}
	link := storeURL(c.Request, j.files[i].key)
	return reply{status: http.StatusFound, body: map[string]string{"url": link}, header: map[string]string{"Location": link}}
}

// paginate answers with the page that the client asked for, and a Link header to the next one.
func paginate[T any](c *call, all []T) reply {
	q := c.URL.Query()
	per, err := strconv.Atoi(q.Get("per_page"))
	if err != nil || per < 1 {
		per = 30
	}
	per = min(per, 100)
	page, err := strconv.Atoi(q.Get("page"))
	if err != nil || page < 1 {
		page = 1
	}
	from, to := min((page-1)*per, len(all)), min(page*per, len(all))
	next := ""
	if to < len(all) {
		q.Set("page", strconv.Itoa(page+1))
		next = fmt.Sprintf("<%s%s?%s>; rel=%q", base(c.Request), c.URL.Path, q.Encode(), "next")
	}
	return reply{body: append([]T{}, all[from:to]...), header: map[string]string{"Link": next}}
}
