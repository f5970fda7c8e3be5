package bktest

import "time"

// The types of REST responses; field names and meanings are Buildkite's
// (https://buildkite.com/docs/apis/rest-api). Times are UTC; nil is not yet.

// Build is one build of the pipeline.
type Build struct {
	ID         string            `json:"id"`
	WebURL     string            `json:"web_url"`
	Number     int               `json:"number"`
	State      string            `json:"state"` // scheduled, running, failing, passed, failed, canceling, canceled
	Message    string            `json:"message"`
	Commit     string            `json:"commit"`
	Branch     string            `json:"branch"`
	Env        map[string]string `json:"env"`
	MetaData   map[string]string `json:"meta_data"`
	CreatedAt  *time.Time        `json:"created_at"`
	StartedAt  *time.Time        `json:"started_at"`
	FinishedAt *time.Time        `json:"finished_at"`
	Jobs       []Job             `json:"jobs,omitempty"`
}

// Finished reports whether the build's state is final.
func (b Build) Finished() bool {
	return b.State == "passed" || b.State == "failed" || b.State == "canceled"
}

// Job is one run of a command step.
type Job struct {
	ID              string     `json:"id"`
	Type            string     `json:"type"`
	Name            string     `json:"name"`
	State           string     `json:"state"` // scheduled, assigned, accepted, running, canceling, canceled, timing_out, timed_out, passed, failed
	WebURL          string     `json:"web_url"`
	Command         string     `json:"command"`
	ExitStatus      *int       `json:"exit_status"`
	SignalReason    string     `json:"signal_reason,omitempty"`
	ArtifactPaths   string     `json:"artifact_paths"`
	AgentQueryRules []string   `json:"agent_query_rules"`
	Agent           *Agent     `json:"agent"`
	RunnableAt      *time.Time `json:"runnable_at"`
	StartedAt       *time.Time `json:"started_at"`
	FinishedAt      *time.Time `json:"finished_at"`
	Priority        Priority   `json:"priority"`
	Retried         bool       `json:"retried"`
	RetriesCount    int        `json:"retries_count"`
}

// Priority is that of a job.
type Priority struct {
	Number int `json:"number"`
}

// Agent is an agent that registered.
type Agent struct {
	ID              string     `json:"id"`
	Name            string     `json:"name"`
	ConnectionState string     `json:"connection_state"` // connected, stopping, disconnected, lost; never_connected before connect
	Hostname        string     `json:"hostname"`
	Version         string     `json:"version"`
	MetaData        []string   `json:"meta_data"` // the tags, key=value
	Job             *Job       `json:"job"`       // nil when idle
	Paused          bool       `json:"paused"`
	PausedNote      *string    `json:"paused_note"`
	PausedAt        *time.Time `json:"paused_at"`
}

// Artifact is a file that a job uploaded.
type Artifact struct {
	ID          string `json:"id"`
	JobID       string `json:"job_id"`
	DownloadURL string `json:"download_url"`
	State       string `json:"state"` // new, finished, error
	Path        string `json:"path"`
	Filename    string `json:"filename"`
	FileSize    int64  `json:"file_size"`
	SHA1        string `json:"sha1sum"`
}

// JobEnvKey is the key of meta-data with which a test asks for what only a hostile Buildkite does. Its
// value is a JSON object of variables that each job of the build gets, whatever the server would send.
const JobEnvKey = "bktest_job_env"

// NewBuild is the body of a request to create a build.
type NewBuild struct {
	Commit   string            `json:"commit"`
	Branch   string            `json:"branch"`
	Message  string            `json:"message,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	MetaData map[string]string `json:"meta_data,omitempty"` // see JobEnvKey
	// Steps replaces the pipeline's own: a list of steps, a pipeline, or one as YAML text.
	Steps any `json:"steps,omitempty"`
}
