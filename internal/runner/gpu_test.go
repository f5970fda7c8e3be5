package runner

import (
	"fmt"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// A slot's container sees its node's whole topology, but only the properties of its own
// GPU, and has one render node.
func TestKFDNames(t *testing.T) {
	t.Parallel()
	const nodes = "sys/class/kfd/kfd/topology/nodes/"
	gpu := func(location, render int) string {
		return fmt.Sprintf("cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nlocation_id %d\ndomain 0\ndrm_render_minor %d\nunique_id 4260130962129551360\n", location, render)
	}
	for name, row := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"none":            {nil, nil},
		"CPUs":            {map[string]string{nodes + "0/properties": "cpu_cores_count 96\nsimd_count 0\n"}, nil},
		"a board's name":  {map[string]string{nodes + "2/properties": gpu(0x500, 128), "dev/dri/renderD128": "", "sys/bus/pci/devices/0000:05:00.0/product_name": "AMD Instinct MI300X OAM\n"}, []string{"AMD Instinct MI300X OAM"}},
		"no board's name": {map[string]string{nodes + "2/properties": gpu(0x500, 128), "dev/dri/renderD128": ""}, []string{"gfx942"}},
		"a partition": {map[string]string{
			nodes + "0/properties": "simd_count 0\n", nodes + "3/properties": gpu(0x503, 131), nodes + "4/gpu_id": "", // hidden
			"dev/dri/renderD131": "", "sys/bus/pci/devices/0000:05:00.0/product_name": "AMD Instinct MI300X OAM",
		}, []string{"AMD Instinct MI300X OAM"}},
		"another slot's node is told": {map[string]string{nodes + "2/properties": gpu(0x500, 128), nodes + "3/properties": gpu(0x2600, 136), "dev/dri/renderD136": ""}, []string{"gfx942"}},
		"in their order": {map[string]string{
			nodes + "10/properties": gpu(0x2600, 136), nodes + "9/properties": gpu(0x500, 128), "dev/dri/renderD128": "", "dev/dri/renderD136": "",
			"sys/bus/pci/devices/0000:05:00.0/product_name": "first", "sys/bus/pci/devices/0000:26:00.0/product_name": "second",
		}, []string{"first", "second"}},
		"rubbish": {map[string]string{nodes + "2/properties": "simd_count x\ndrm_render_minor ../../etc\n", nodes + "x/properties": "simd_count 1\ndrm_render_minor -1\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range row.files {
				must.Write(t, root, file, text)
			}
			must.Equal(t, row.want, kfdNames(root+"/sys", root+"/dev"))
		})
	}
}
