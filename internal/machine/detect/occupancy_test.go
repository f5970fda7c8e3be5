package detect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/machine/detect/probe"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestNVIDIAUse(t *testing.T) {
	t.Parallel()
	const id = "GPU-00000000-0000-4000-8000-000000000003"
	for _, row := range []struct {
		name, gpu string // the GPU in the probe's JSON
		want      Occupancy
		err       string
	}{
		{
			"idle", `{"index":-1,"uuid":"` + id + `","memory":{"used_bytes":4194304}}`,
			Occupancy{Driver: "580.1", UsedBytes: 4 << 20}, "",
		},
		{
			"in use", `{"index":-1,"uuid":"` + id + `","memory":{"used_bytes":1},"processes":[{"pid":7,"used_bytes":9}],"graphics_processes":[{"pid":8}]}`,
			Occupancy{Driver: "580.1", UsedBytes: 1, Compute: []nvml.Process{{PID: 7, UsedBytes: 9}}, Graphics: []nvml.Process{{PID: 8}}}, "",
		},
		{
			"its memory is a NUMA node", `{"index":-1,"uuid":"` + id + `","memory_node":4,"memory":{"used_bytes":1}}`,
			Occupancy{Driver: "580.1", UsedBytes: -1}, "",
		},
		{"lost", `{"index":-1,"uuid":"` + id + `","error":"GPU is lost","code":15}`, Occupancy{}, "check " + id + ": GPU is lost"},
		{"it tells no processes", `{"index":-1,"uuid":"` + id + `","error":"` + nvml.Untold + `","unread":["nvmlDeviceGetNumaNodeId: Unknown Error"]}`, Occupancy{}, "check " + id + ": " + nvml.Untold},
		{"it fails to tell them", `{"index":-1,"uuid":"` + id + `","error":"` + nvml.Untold + `","unread":["nvmlDeviceGetComputeRunningProcesses_v3: Timeout"]}`, Occupancy{}, "check " + id + ": " + nvml.Untold},
		{"another one", `{"index":0,"uuid":"GPU-x"}`, Occupancy{}, "reports another GPU"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(t.TempDir(), "probe")
			text := fmt.Sprintf("#!/bin/sh\n[ \"$*\" = %s ] || exit 9\ncat <<'END'\n{\"schema\":1,\"ok\":true,\"driver\":\"580.1\",\"gpus\":[%s]}\nEND\n", id, row.gpu)
			must.Program(t, program, text)
			got, err := nvidiaUse(t.Context(), probe.Options{Path: program, GPU: id, Timeout: time.Minute})
			if diff := cmp.Diff(row.want, got); diff != "" || (err == nil) != (row.err == "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
			if errors.Is(err, ErrUntold) != (row.name == "it tells no processes") {
				t.Errorf("%v is not what it never tells", err)
			}
		})
	}
	if _, err := NVIDIAOccupied(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "UUID is unknown") {
		t.Errorf("without a UUID: %v", err)
	}
}

func TestAMDUse(t *testing.T) {
	t.Parallel()
	const proc = "sys/class/kfd/kfd/proc/"
	server := func(partitions int, files map[string]string) string {
		m := machinetest.MI300X()
		m.AMD = m.AMD[:2]
		for i := range m.AMD {
			m.AMD[i].Partitions, m.AMD[i].Used = partitions, int64(i+1)<<20
		}
		root := m.Dir(t)
		must.Do(t, os.MkdirAll(filepath.Join(root, proc), 0o700))
		for name, text := range files {
			must.Write(t, root, name, text+"\n")
		}
		return root
	}
	gpu, _, err := amdNode(treeAt(t, server(1, nil)), []string{"/dev/dri/renderD136"})
	must.Do(t, err)
	second := gpu.id
	for _, row := range []struct {
		name       string
		partitions int
		files      map[string]string
		nodes      []string
		want       Occupancy
		err        string
	}{
		{"idle", 1, nil, []string{"/dev/kfd", "/dev/dri/renderD136"}, Occupancy{Driver: "6.12.12", UsedBytes: 2 << 20}, ""},
		{
			"in use", 1, map[string]string{
				proc + "100/vram_" + second:           "4096",
				proc + "101/vram_" + second:           "0", // it opened the driver, and nothing else
				proc + "102/vram_" + second:           "0",
				proc + "102/queues/0/gpuid":           second,
				proc + "103/vram_1":                   "4096", // on another GPU
				proc + "103/queues/0/gpuid":           "1",
				proc + "not-a-process/vram_" + second: "1",
			},
			[]string{"/dev/dri/renderD136"},
			Occupancy{Driver: "6.12.12", UsedBytes: 2 << 20, Compute: []nvml.Process{{PID: 100, UsedBytes: 4096}, {PID: 102}}}, "",
		},
		{"a partition's memory is not counted", 8, nil, []string{"/dev/dri/renderD137"}, Occupancy{Driver: "6.12.12", UsedBytes: -1}, ""},
		{"no such GPU", 1, nil, []string{"/dev/dri/renderD99"}, Occupancy{}, "does not list renderD99"},
		{"no render node", 1, nil, []string{"/dev/kfd"}, Occupancy{}, "render node is unknown"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got, err := AMDOccupied(server(row.partitions, row.files), row.nodes)
			if diff := cmp.Diff(row.want, got); diff != "" || (err == nil) != (row.err == "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}
