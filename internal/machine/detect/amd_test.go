package detect_test

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// amdMachine has the first GPUs of the server with eight MI300X, and few CPUs.
func amdMachine(gpus int) machinetest.Machine {
	m := machinetest.MI300X()
	m.Cores, m.CoresPerL3 = 2, 2
	m.AMD = append([]machinetest.AMD(nil), m.AMD[:gpus]...)
	for i := range m.AMD {
		m.AMD[i].Links = nil
	}
	return m
}

func TestReadAMD(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		machine func() machinetest.Machine
		want    []string // lines of summary about GPUs
	}{
		{
			name: "one dead beside one healthy",
			machine: func() machinetest.Machine {
				m := amdMachine(2)
				m.AMD[0].Dead = true
				return m
			},
			want: []string{
				"amd {DriverVersion:6.12.12 KFD:true}",
				`gpu 0000:05:00.0/0 amd 1002:74a1 "AMD Instinct MI300X" "GPU-3b1f0a0e64b40000" index -1 node 0 memory node -1 minor -1 render 128 arch "" 196592 MiB SPX/NPS1 UNHEALTHY: has no node in the compute driver's topology (KFD); see the kernel log for amdgpu`,
				`gpu 0000:26:00.0/0 amd 1002:74a1 "AMD Instinct MI300X" "GPU-3b1f0a0e64b40001" index 0 node 0 memory node -1 minor -1 render 136 arch "gfx942" 196592 MiB SPX/NPS1`,
				"problem gpu 0000:05:00.0: has no node in the compute driver's topology (KFD); see the kernel log for amdgpu",
			},
		},
		{
			name: "no driver",
			machine: func() machinetest.Machine {
				m := amdMachine(1)
				m.NoKFD = true
				return m
			},
			want: []string{
				"amd {DriverVersion: KFD:false}",
				`gpu 0000:05:00.0/0 amd 1002:74a1 "AMD Instinct MI300X" "" index -1 node 0 memory node -1 minor -1 render -1 arch "" 0 MiB / UNHEALTHY: does not use the amdgpu driver (driver: none); load it with: modprobe amdgpu`,
				"problem gpu 0000:05:00.0: does not use the amdgpu driver (driver: none); load it with: modprobe amdgpu",
			},
		},
		{
			name: "nothing but the PCI devices, of all classes, beside a sound device",
			machine: func() machinetest.Machine {
				m := amdMachine(0)
				m.Files = map[string]string{}
				for pci, class := range map[string]string{"0000:03:00.0": "0x030000", "0000:04:00.0": "0x030200", "0000:05:00.0": "0x038000", "0000:06:00.0": "0x120000", "0000:06:00.1": "0x040300"} {
					m.Files["sys/bus/pci/devices/"+pci+"/vendor"] = "0x1002"
					m.Files["sys/bus/pci/devices/"+pci+"/device"] = "0x75a3"
					m.Files["sys/bus/pci/devices/"+pci+"/class"] = class
					m.Files["sys/bus/pci/devices/"+pci+"/local_cpulist"] = "2-3,6-7"
				}
				return m
			},
			want: []string{
				"amd {DriverVersion: KFD:false}",
				`gpu 0000:03:00.0/0 amd 1002:75a3 "AMD Instinct MI355X" "" index -1 node 1 memory node -1 minor -1 render -1 arch "" 0 MiB /`,
				`gpu 0000:04:00.0/0 amd 1002:75a3 "AMD Instinct MI355X" "" index -1 node 1 memory node -1 minor -1 render -1 arch "" 0 MiB /`,
				`gpu 0000:05:00.0/0 amd 1002:75a3 "AMD Instinct MI355X" "" index -1 node 1 memory node -1 minor -1 render -1 arch "" 0 MiB /`,
				`gpu 0000:06:00.0/0 amd 1002:75a3 "AMD Instinct MI355X" "" index -1 node 1 memory node -1 minor -1 render -1 arch "" 0 MiB /`,
			},
		},
		{
			name: "KFD alone, below devices/virtual, as in recorded topologies",
			machine: func() machinetest.Machine {
				m := amdMachine(0)
				node := func(location, render string) string {
					return "simd_count 38\ngfx_target_version 90010\nlocation_id " + location + "\ndomain 1\ndrm_render_minor " + render + "\nunique_id 81985529216486895\n"
				}
				const nodes = "sys/devices/virtual/kfd/kfd/topology/nodes/"
				m.Files = map[string]string{
					nodes + "0/properties":             "cpu_cores_count 8\nsimd_count 0\n",
					nodes + "1/properties":             node("1281", "129"),
					nodes + "2/properties":             node("1280", "128"),
					nodes + "1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 8589934592\n",
					nodes + "2/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 8589934592\n",
				}
				return m
			},
			want: []string{
				"amd {DriverVersion: KFD:true}",
				`gpu 0001:05:00.0/0 amd  "AMD GPU" "GPU-0123456789abcdef" index 1 node -1 memory node -1 minor -1 render 128 arch "gfx90a" 8192 MiB /`,
				`gpu 0001:05:00.0/1 amd  "AMD GPU" "GPU-0123456789abcdef" index 0 node -1 memory node -1 minor -1 render 129 arch "gfx90a" 8192 MiB /`,
			},
		},
		{
			name: "partitions that have IDs of their own, as of a virtual function",
			machine: func() machinetest.Machine {
				m := amdMachine(0)
				node := func(location, render, id string) string {
					return "simd_count 38\ngfx_target_version 90402\nlocation_id " + location + "\ndomain 0\ndrm_render_minor " + render + "\nunique_id " + id + "\n"
				}
				const nodes = "sys/class/kfd/kfd/topology/nodes/"
				m.Files = map[string]string{
					nodes + "0/properties": "cpu_cores_count 8\nsimd_count 0\n",
					nodes + "1/properties": node("1281", "129", "2"), nodes + "2/properties": node("1280", "128", "1"),
					nodes + "3/properties": node("1536", "136", "3"), nodes + "4/properties": node("1537", "137", "4"),
				}
				return m
			},
			want: []string{
				"amd {DriverVersion: KFD:true}",
				`gpu 0000:05:00.0/0 amd  "AMD GPU" "GPU-0000000000000001" index 1 node -1 memory node -1 minor -1 render 128 arch "gfx942" 0 MiB /`,
				`gpu 0000:05:00.0/1 amd  "AMD GPU" "GPU-0000000000000001" index 0 node -1 memory node -1 minor -1 render 129 arch "gfx942" 0 MiB /`,
				`gpu 0000:06:00.0/0 amd  "AMD GPU" "GPU-0000000000000003" index 2 node -1 memory node -1 minor -1 render 136 arch "gfx942" 0 MiB /`,
				`gpu 0000:06:00.0/1 amd  "AMD GPU" "GPU-0000000000000003" index 3 node -1 memory node -1 minor -1 render 137 arch "gfx942" 0 MiB /`,
			},
		},
		{
			name: "partitions numbered above the address, beside a function of their own",
			machine: func() machinetest.Machine {
				m := amdMachine(1)
				m.AMD[0].PCI, m.AMD[0].Partitions, m.AMD[0].HighNumber, m.AMD[0].Compute = "0000:05:00.1", 2, true, "DPX"
				return m
			},
			want: []string{
				"amd {DriverVersion:6.12.12 KFD:true}",
				`gpu 0000:05:00.1/0 amd 1002:74a1 "AMD Instinct MI300X" "GPU-3b1f0a0e64b40000" index 0 node 0 memory node -1 minor -1 render 128 arch "gfx942" 98296 MiB DPX/NPS1`,
				`gpu 0000:05:00.1/1 amd 1002:74a1 "AMD Instinct MI300X" "GPU-3b1f0a0e64b40000" index 1 node 0 memory node -1 minor -1 render 129 arch "gfx942" 98296 MiB DPX/NPS1`,
			},
		},
		{
			name: "partitions that the driver does not number, one without a render node",
			machine: func() machinetest.Machine {
				m := amdMachine(0)
				node := func(render string) string {
					return "simd_count 128\ngfx_target_version 90500\nlocation_id 1280\ndomain 0\ndrm_render_minor " + render + "\nunique_id 81985529216486895\n"
				}
				const nodes = "sys/class/kfd/kfd/topology/nodes/"
				m.Files = map[string]string{
					nodes + "0/properties": "cpu_cores_count 8\nsimd_count 0\n", nodes + "1/properties": node("128"),
					nodes + "2/properties": node("129"), nodes + "3/properties": node("0"),
				}
				return m
			},
			want: []string{
				"amd {DriverVersion: KFD:true}",
				`gpu 0000:05:00.0/0 amd  "AMD GPU" "GPU-0123456789abcdef" index 0 node -1 memory node -1 minor -1 render 128 arch "gfx950" 0 MiB /`,
				`gpu 0000:05:00.0/1 amd  "AMD GPU" "GPU-0123456789abcdef" index 1 node -1 memory node -1 minor -1 render 129 arch "gfx950" 0 MiB /`,
				`gpu 0000:05:00.0/2 amd  "AMD GPU" "GPU-0123456789abcdef" index 2 node -1 memory node -1 minor -1 render -1 arch "gfx950" 0 MiB / UNHEALTHY: the compute driver (KFD) lists no render node for it`,
				"problem gpu 0000:05:00.0/2: the compute driver (KFD) lists no render node for it",
			},
		},
		{
			name: "virtual functions are not partitions",
			machine: func() machinetest.Machine {
				m := amdMachine(2)
				m.AMD[0].PCI, m.AMD[1].PCI = "0000:05:00.0", "0000:05:00.1"
				m.AMD[0].Device, m.AMD[1].Device = "74b5", "74b5"
				return m
			},
			want: []string{
				"amd {DriverVersion:6.12.12 KFD:true}",
				`gpu 0000:05:00.0/0 amd 1002:74b5 "AMD Instinct MI300X VF" "GPU-3b1f0a0e64b40000" index 0 node 0 memory node -1 minor -1 render 128 arch "gfx942" 196592 MiB SPX/NPS1`,
				`gpu 0000:05:00.1/0 amd 1002:74b5 "AMD Instinct MI300X VF" "GPU-3b1f0a0e64b40001" index 1 node 0 memory node -1 minor -1 render 136 arch "gfx942" 196592 MiB SPX/NPS1`,
			},
		},
		{
			name: "a model that kbnode does not know, with a name on its board",
			machine: func() machinetest.Machine {
				m := amdMachine(1)
				m.AMD[0].Device, m.AMD[0].Product, m.AMD[0].Target, m.AMD[0].Node = "7fff", "AMD Instinct MI999X", 120100, -1
				return m
			},
			want: []string{
				"amd {DriverVersion:6.12.12 KFD:true}",
				`gpu 0000:05:00.0/0 amd 1002:7fff "AMD Instinct MI999X" "GPU-3b1f0a0e64b40000" index 0 node -1 memory node -1 minor -1 render 128 arch "gfx1210" 196592 MiB SPX/NPS1`,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for line := range strings.Lines(summary(read(t, tt.machine().Dir(t)))) {
				switch word, _, _ := strings.Cut(line, " "); word {
				case "amd", "gpu", "problem":
					got = append(got, strings.TrimSpace(line))
				}
			}
			must.Equal(t, tt.want, got)
		})
	}
}
