package probe

import (
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

const gpu3 = "GPU-00000000-0000-4000-8000-000000000003"

// A setting of one GPU affects only that GPU, and stays.
func TestSet(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	for _, row := range []struct {
		name, variant, config string
		set                   []Setting
		appended              []string // lines that the fake appended
		err                   string
	}{
		{
			"persistence and clocks", "driver", "persistence = 0\n",
			[]Setting{{gpu3, SetPersistence, "on"}, {gpu3, SetClocks, "1410"}, {gpu3, SetClocks, "base"}, {gpu3, SetClocks, "default"}},
			[]string{"gpu.3.persistence = 1", "gpu.3.locked_clocks = 1410-1410", "gpu.3.locked_clocks = tdp", "gpu.3.locked_clocks = none"}, "",
		},
		{"a clock that it does not have", "driver", "", []Setting{{gpu3, SetClocks, "9999"}}, nil, "nvmlDeviceSetGpuLockedClocks: "},
		{"a driver that cannot lock", "nosym", "", []Setting{{gpu3, SetPersistence, "on"}, {gpu3, SetClocks, "base"}}, []string{"gpu.3.persistence = 1"}, "nvmlDeviceSetGpuLockedClocks: "},
		{"not supported", "driver", "gpu.3.fail.nvmlDeviceSetPersistenceMode = 3\n", []Setting{{gpu3, SetPersistence, "on"}}, nil, "nvmlDeviceSetPersistenceMode: Not Supported"},
		{"lost", "driver", "gpu.3.handle = 15\n", []Setting{{gpu3, SetClocks, "base"}}, nil, "nvmlDeviceGetHandleByUUID: GPU is lost"},
		{"its neighbour is lost", "driver", "gpu.2.error = 15\n", []Setting{{gpu3, SetPersistence, "off"}}, []string{"gpu.3.persistence = 0"}, ""},
		{"no driver", "driver", "init = 9\n", []Setting{{gpu3, SetPersistence, "on"}}, nil, "the NVIDIA driver is not loaded"},
		{"another name", "driver", "", []Setting{{gpu3, "power", "1"}}, nil, `power cannot be set to "1"`},
		{"no number", "driver", "", []Setting{{gpu3, SetClocks, "max"}}, nil, `clocks cannot be set to "max"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			opts := r.options(t, row.variant, row.config)
			opts.Timeout = time.Minute
			var err error
			for _, s := range row.set {
				if err = Set(t.Context(), opts, s); err != nil {
					break
				}
			}
			must.Err(t, err, row.err)
			file := strings.TrimPrefix(opts.Env[1], "KBNODE_FAKE_NVML=")
			text := must.Read(t, file)
			var appended []string
			if added := strings.TrimPrefix(text, row.config); added != "" {
				appended = strings.Split(strings.TrimSpace(added), "\n")
			}
			must.Equal(t, row.appended, appended)
		})
	}
}
