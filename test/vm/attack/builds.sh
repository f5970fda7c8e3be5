#!/bin/bash
# Submits a build of steps.yml for each line of builds.jsonl, the variables of its job, all of them at
# once, and waits for them. Of each it prints an object: which line, its job and its log.
set -eu
cd /root/attack/builds
split -l 1 -d -a 3 builds.jsonl row
for row in row*; do
	bkstub submit --queue b200 --steps steps.yml --job-env "$row" >"build-$row"
done
for row in row*; do
	{ bkstub wait --json --timeout 30m "$(cat "build-$row")" 2>/dev/null || true; } |
		jq -c --argjson row $((10#${row#row})) '{row: $row, job: .build.jobs[0], log: .log}'
done
