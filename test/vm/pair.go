package vm

import (
	"context"
	"fmt"
	"path/filepath"
)

// cablePort is the PCIe slot that every machine has free, for the card of Join.
const cablePort = "cable"

// Addresses of two machines that Join has joined.
const (
	FirstAddress  = "10.99.0.1"
	SecondAddress = "10.99.0.2"
)

// joinNetwork gives a network card its address at each boot: mac, address.
const joinNetwork = `#!/bin/sh
until card=$(grep -l -x %s /sys/class/net/*/address); do sleep 0.2; done
card=$(basename "$(dirname "$card")")
ip address replace %s/24 dev "$card"
ip link set "$card" up
`

const networkUnit = `[Unit]
Description=Address of the cable to the other machine
Before=bkstub.service
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/rig-network
RemainAfterExit=yes
TimeoutStartSec=2min
[Install]
WantedBy=multi-user.target
`

// relayUnit hands connections on: where from, where to.
const relayUnit = `[Unit]
Description=Way to the stand-in for Buildkite
After=rig-network.service
Requires=rig-network.service
[Service]
ExecStart=/usr/bin/systemd-socket-activate -l %s /usr/lib/systemd/systemd-socket-proxyd %s
Restart=always
[Install]
WantedBy=multi-user.target
`

// Join connects two machines by a network cable. The second is then called name, and its stand-in for Buildkite is
// the first's, at the usual address.
func Join(first, second *Machine, name string) {
	first.t.Helper()
	second.suffix = "-" + name
	socket := filepath.Join(first.VM.Dir, "cable.sock")
	for i, m := range []*Machine{first, second} {
		mac := fmt.Sprintf("52:54:00:99:00:%02x", i+1)
		if err := m.VM.plug(m.t.Context(), socket, i == 0, mac); err != nil {
			m.t.Fatal(err)
		}
		m.Put("/usr/local/sbin/rig-network", 0o755, fmt.Sprintf(joinNetwork, mac, []string{FirstAddress, SecondAddress}[i]))
		m.Put("/etc/systemd/system/rig-network.service", 0o644, networkUnit)
	}
	first.Put("/etc/systemd/system/rig-relay.service", 0o644, fmt.Sprintf(relayUnit, FirstAddress+":8899", "127.0.0.1:8899"))
	second.Put("/etc/systemd/system/rig-relay.service", 0o644, fmt.Sprintf(relayUnit, "127.0.0.1:8899", FirstAddress+":8899"))
	second.Sh("hostnamectl hostname " + name + " || { hostname " + name + "; echo " + name + " >/etc/hostname; }; systemctl disable -q --now bkstub")
	for _, m := range []*Machine{first, second} {
		m.Sh("systemctl daemon-reload; systemctl enable -q --now rig-network rig-relay")
	}
	second.Wait("the other machine", "curl -sf -m 5 -o /dev/null -H 'Authorization: Token x' http://127.0.0.1:8899/ || [ $? = 22 ]")
}

// plug puts a card into the free slot, with a cable of which one end serves the socket.
func (m *VM) plug(ctx context.Context, socket string, serves bool, mac string) error {
	_, err := m.qmp.call(ctx, "netdev_add", map[string]any{
		"type": "stream", "id": "cable", "server": serves, "addr": map[string]any{"type": "unix", "path": socket},
	})
	if err == nil {
		_, err = m.qmp.call(ctx, "device_add", map[string]any{
			"driver": "virtio-net-pci", "id": "card", "netdev": "cable", "bus": cablePort, "mac": mac, "romfile": "",
		})
	}
	return err
}

// Unplug pulls the cable of Join, and Plug puts it in again.
func (m *Machine) Unplug() { m.link(false) }

// Plug is for a cable that was pulled.
func (m *Machine) Plug() { m.link(true) }

func (m *Machine) link(up bool) {
	m.t.Helper()
	if _, err := m.VM.qmp.call(m.t.Context(), "set_link", map[string]any{"name": "card", "up": up}); err != nil {
		m.t.Fatal(err)
	}
}
