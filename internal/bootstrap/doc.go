// Package bootstrap is what a slot's agent starts for a job, in place of its own bootstrap. It
// reads the job as data, has the slot's service run it in a container, writes the log, uploads
// artifacts, and ends as Buildkite expects. It starts no program of the job's.
package bootstrap
