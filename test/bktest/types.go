package bktest

import "time"

// The types of REST responses; field names and meanings are Buildkite's
// (https://buildkite.com/docs/apis/rest-api). Times are UTC; nil is not yet.

// Build is one build of a pipeline. Numbers are shared by all pipelines.
type Build struct {
	ID             string            `json:"id"`
	URL            string            `json:"url"`
	WebURL         string            `json:"web_url"`
	Number         int               `json:"number"`
	State          string            `json:"state"` // scheduled, running, failing, passed, failed, canceling, canceled
	Blocked        bool              `json:"blocked"`
	Message        string            `json:"message"`
	Commit         string            `json:"commit"`
	Branch         string            `json:"branch"`
	Env            map[string]string `json:"env"`
	Source         string            `json:"source"`
	MetaData       map[string]string `json:"meta_data"`
	CreatedAt      *time.Time        `json:"created_at"`
	ScheduledAt    *time.Time        `json:"scheduled_at"`
	StartedAt      *time.Time        `json:"started_at"`
	FinishedAt     *time.Time        `json:"finished_at"`
	JobStateCounts map[string]int    `json:"job_state_counts,omitempty"`
	Jobs           []Job             `json:"jobs,omitempty"`
	Pipeline       *PipelineRef      `json:"pipeline,omitempty"`
}

// Finished reports whether the build's state is final.
func (b Build) Finished() bool {
	return b.State == "passed" || b.State == "failed" || b.State == "canceled"
}

// PipelineRef names the pipeline of a build.
type PipelineRef struct {
	ID         string `json:"id"`
	Slug       string `json:"slug"`
	Name       string `json:"name"`
	Repository string `json:"repository"`
}

// Job is one run of a command step.
type Job struct {
	ID              string     `json:"id"`
	Type            string     `json:"type"`
	Name            string     `json:"name"`
	StepKey         string     `json:"step_key,omitempty"`
	State           string     `json:"state"` // scheduled, assigned, accepted, running, canceling, canceled, timing_out, timed_out, passed, failed
	WebURL          string     `json:"web_url"`
	LogURL          string     `json:"log_url"`
	RawLogURL       string     `json:"raw_log_url"`
	ArtifactsURL    string     `json:"artifacts_url"`
	Command         string     `json:"command"`
	SoftFailed      bool       `json:"soft_failed"`
	ExitStatus      *int       `json:"exit_status"`
	Signal          string     `json:"signal,omitempty"`
	SignalReason    string     `json:"signal_reason,omitempty"`
	ArtifactPaths   string     `json:"artifact_paths"`
	AgentQueryRules []string   `json:"agent_query_rules"`
	Agent           *Agent     `json:"agent"`
	CreatedAt       *time.Time `json:"created_at"`
	ScheduledAt     *time.Time `json:"scheduled_at"`
	RunnableAt      *time.Time `json:"runnable_at"`
	StartedAt       *time.Time `json:"started_at"`
	FinishedAt      *time.Time `json:"finished_at"`
	Retried         bool       `json:"retried"`
	RetriedInJobID  string     `json:"retried_in_job_id,omitempty"`
	RetriesCount    int        `json:"retries_count"`
	RetryType       string     `json:"retry_type,omitempty"`
}

// Agent is an agent that registered.
type Agent struct {
	ID                string     `json:"id"`
	URL               string     `json:"url"`
	WebURL            string     `json:"web_url"`
	Name              string     `json:"name"`
	ConnectionState   string     `json:"connection_state"` // connected, disconnected, stopping, lost; never_connected before connect
	Hostname          string     `json:"hostname"`
	IPAddress         string     `json:"ip_address"`
	UserAgent         string     `json:"user_agent"`
	Version           string     `json:"version"`
	CreatedAt         *time.Time `json:"created_at"`
	LastJobFinishedAt *time.Time `json:"last_job_finished_at"`
	Priority          int        `json:"priority"`
	MetaData          []string   `json:"meta_data"` // the tags, key=value
	Paused            bool       `json:"paused"`
	PausedNote        string     `json:"paused_note,omitempty"`
	Job               *Job       `json:"job"` // nil when idle
}

// Artifact is a file that a job uploaded.
type Artifact struct {
	ID          string `json:"id"`
	JobID       string `json:"job_id"`
	URL         string `json:"url"`
	DownloadURL string `json:"download_url"`
	State       string `json:"state"` // new, finished, error
	Path        string `json:"path"`
	Dirname     string `json:"dirname"`
	Filename    string `json:"filename"`
	MimeType    string `json:"mime_type"`
	FileSize    int64  `json:"file_size"`
	GlobPath    string `json:"glob_path"`
	SHA1        string `json:"sha1sum"`
	SHA256      string `json:"sha256sum"`
}

// Queue is a queue of the one cluster.
type Queue struct {
	ID             string     `json:"id"`
	Key            string     `json:"key"`
	Description    string     `json:"description"`
	URL            string     `json:"url"`
	DispatchPaused bool       `json:"dispatch_paused"`
	CreatedAt      *time.Time `json:"created_at"`
}

// NewBuild is the body of a request to create a build.
type NewBuild struct {
	Pipeline string            `json:"-"` // slug; "" is the only pipeline
	Commit   string            `json:"commit"`
	Branch   string            `json:"branch"`
	Message  string            `json:"message,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	MetaData map[string]string `json:"meta_data,omitempty"`
	// Steps replaces the pipeline's own: a list of steps, a pipeline, or one as YAML text.
	Steps any `json:"steps,omitempty"`
}
