package detect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// kfdAddress returns the PCI address of a compute node, and its partition number on that
// device. Drivers write the number into bits 28 to 31 of location_id, or over its lowest
// three bits, which otherwise are the PCI function: they are the function if such a PCI
// device exists.
func kfdAddress(domain, location int64, devices []string) (pci string, partition int) {
	address := fmt.Sprintf("%04x:%02x:%02x.", domain, location>>8&0xff, location>>3&0x1f)
	low := int(location & 7)
	own := address + strconv.Itoa(low)
	if high := int(location >> 28 & 0xf); high > 0 {
		return own, high
	}
	if slices.Contains(devices, own) {
		return own, 0
	}
	return address + "0", low
}

// numberPartitions renumbers the nodes of a device in order if the driver gave two of them
// the same number: for some models it writes none.
func numberPartitions(nodes []kfdGPU) {
	type partition struct {
		pci       string
		partition int
	}
	listed, same := map[partition]bool{}, map[string]bool{}
	for _, n := range nodes {
		at := partition{n.pci, n.partition}
		same[n.pci] = same[n.pci] || listed[at]
		listed[at] = true
	}
	next := map[string]int{}
	for i := range nodes {
		if pci := nodes[i].pci; same[pci] {
			nodes[i].partition = next[pci]
			next[pci]++
		}
	}
}

// xgmiType is KFD's type number of an xGMI link. Paths through a CPU are in p2p_links
// beside io_links, and are not direct links.
const xgmiType = "11"

// readXGMI returns the nodes at the other ends of a node's xGMI links, possibly including
// CPUs.
func readXGMI(t tree, dir string) []int {
	var nodes []int
	for _, link := range t.numbered(dir, "") {
		p := fields(t.text(fmt.Sprintf("%s/%d/properties", dir, link)))
		if to, err := strconv.Atoi(p["node_to"]); err == nil && p["type"] == xgmiType {
			nodes = append(nodes, to)
		}
	}
	return nodes
}

// xgmiLinks returns the other devices that each device is linked to.
func xgmiLinks(nodes []kfdGPU) map[string][]string {
	at := map[int]string{}
	for _, n := range nodes {
		at[n.node] = n.pci
	}
	links := map[string][]string{}
	for _, n := range nodes {
		for _, to := range n.links {
			if pci := at[to]; pci != "" && pci != n.pci && !slices.Contains(links[n.pci], pci) {
				links[n.pci] = append(links[n.pci], pci)
			}
		}
		slices.SortFunc(links[n.pci], comparePCI)
	}
	return links
}

// amdModels names GPUs by device ID, because the name in the board's memory is not readable
// on every machine.
var amdModels = map[string]string{
	"738c": "AMD Instinct MI100",
	"7408": "AMD Instinct MI250X",
	"740c": "AMD Instinct MI250X / MI250",
	"740f": "AMD Instinct MI210",
	"74a0": "AMD Instinct MI300A",
	"74a1": "AMD Instinct MI300X",
	"74a2": "AMD Instinct MI308X",
	"74a5": "AMD Instinct MI325X",
	"74b5": "AMD Instinct MI300X VF",
	"74b9": "AMD Instinct MI325X VF",
	"75a0": "AMD Instinct MI350X",
	"75a3": "AMD Instinct MI355X",
	"75b3": "AMD Instinct MI355X VF",
}

// amdModel returns a GPU's name. The ID 740c is shared by two models, whose boards name
// themselves.
func amdModel(device, product string) string {
	if known := amdModels[device]; known != "" && device != "740c" {
		return known
	}
	return cmp.Or(product, amdModels[device], strings.TrimSpace("AMD GPU "+device))
}
