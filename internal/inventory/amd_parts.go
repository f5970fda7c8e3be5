package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// kfdAddress is the PCI address of a compute node, and which partition of that device it is.
// Drivers write the partition's number into bits 28 to 31 of location_id, or over its lowest
// three, which are the PCI function otherwise: they are one where such a PCI device exists.
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

// numberPartitions numbers the nodes of a device in their order where the driver gave two of
// them the same number: for some models it writes none.
func numberPartitions(nodes []kfdGPU) {
	type place struct {
		pci       string
		partition int
	}
	seen, same := map[place]bool{}, map[string]bool{}
	for _, n := range nodes {
		at := place{n.pci, n.partition}
		same[n.pci] = same[n.pci] || seen[at]
		seen[at] = true
	}
	next := map[string]int{}
	for i := range nodes {
		if pci := nodes[i].pci; same[pci] {
			nodes[i].partition = next[pci]
			next[pci]++
		}
	}
}

// xgmiType is the type of a link in KFD's words. What is reached by way of a CPU is in
// p2p_links beside io_links, and no direct link.
const xgmiType = "11"

// readXGMI are the nodes that a node's xGMI links lead to; CPUs may be among them.
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

// xgmiLinks are the other devices that each device has a link to.
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

// amdModels names GPUs by their device id, since the name in the board's memory is not
// readable on every machine.
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

// amdModel is a GPU's name. Boards of two models have the id 740c, and say which they are.
func amdModel(device, product string) string {
	if known := amdModels[device]; known != "" && device != "740c" {
		return known
	}
	return cmp.Or(product, amdModels[device], strings.TrimSpace("AMD GPU "+device))
}
