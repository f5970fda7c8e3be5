package keeper

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/limit"
)

const (
	// taskPoll is the time between two checks of how many tasks the slot has.
	taskPoll = time.Second
	idlePoll = 5 * time.Second // without a job
	// taskLooks is how many checks in a row must find no room before a job is ended.
	taskLooks = 3
	// taskRoom is what the agent needs to end a job: a shell and a hook, with
	// the threads of both.
	taskRoom = 32
)

// watchTasks ends a job that keeps all tasks of the slot to itself, until ctx is done: the agent
// could not even start what ends the job, nor what ends the next one.
func (k *Keeper) watchTasks(ctx context.Context) {
	full := 0
	for {
		every := taskPoll
		if full == 0 && !k.running.Load() {
			every = idlePoll // anything that runs on the host can report that no job does
		}
		if limit.Sleep(ctx, every) != nil {
			return
		}
		has, most := k.procs.tasks()
		if most == 0 || has+taskRoom <= most {
			full = 0
			continue
		}
		if full++; full >= taskLooks && k.mu.TryLock() { // otherwise it is cleaning
			full = 0
			k.makeRoom(ctx, has, most)
			k.mu.Unlock()
		}
	}
}

// makeRoom ends a job that has all tasks.
func (k *Keeper) makeRoom(ctx context.Context, has, most int) {
	k.log.Warn("job terminated; it used all tasks", "tasks", has, "limit", most)
	agent, err := k.agentPID(ctx)
	if err != nil {
		k.log.Warn("agent not found", "err", err)
	}
	k.endJob(ctx, agent, fmt.Sprintf("the job was terminated: it had %d of the %d processes and threads that job.tasks_max allows a slot", has, most))
}

// agentPID returns the agent's process, 0 without one.
func (k *Keeper) agentPID(ctx context.Context) (int, error) {
	if k.mainPID == nil {
		return 0, nil
	}
	pid, err := k.mainPID(ctx)
	if err != nil || k.procs.cgroupOf(pid) != k.procs.agent {
		return 0, err
	}
	return pid, nil
}

// tasks returns how many processes and threads the slot has, and may have; 0 is no limit.
func (s slotProcs) tasks() (has, most int) {
	read := func(file string) int {
		text, err := os.ReadFile(filepath.Join(s.root, s.slice, file))
		if err != nil {
			return 0
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(text))) // "max" is 0
		return n
	}
	return read("pids.current"), read("pids.max")
}
