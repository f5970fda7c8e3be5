package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// Destination is a destination that jobs may reach: addresses and their TCP and UDP
// port, or 0 for all ports.
type Destination struct {
	Prefix netip.Prefix
	Port   uint16
}

// maxDestinations bounds the list: each entry is a rule that packets pass.
const maxDestinations = 64

// six matches an IPv6 address or CIDR, which has at least two colons.
const six = `[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{0,40}(/\d{1,3})?`

var destinationForm = lazy.Regexp(`^(\d{1,3}(\.\d{1,3}){3}(/\d{1,2})?(:\d{1,5})?|` + six + `|\[` + six + `\](:\d{1,5})?)$`)

// ParseDestination reads an address or a CIDR, with or without a port:
// 10.1.2.3, 10.1.0.0/16, 10.1.2.3:5000, fd00::/8, [fd00::1]:443.
func ParseDestination(s string) (Destination, error) {
	if !destinationForm().MatchString(s) {
		return Destination{}, errors.New("not an address or CIDR")
	}
	text, port := s, ""
	if rest, is := strings.CutPrefix(s, "["); is {
		text, port, _ = strings.Cut(rest, "]")
		port = strings.TrimPrefix(port, ":")
	} else if strings.Count(s, ":") == 1 {
		text, port, _ = strings.Cut(s, ":")
	}
	var d Destination
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return d, fmt.Errorf("%s is not a port", port)
		}
		d.Port = uint16(n)
	}
	var err error
	if strings.Contains(text, "/") {
		d.Prefix, err = netip.ParsePrefix(text)
	} else {
		var addr netip.Addr
		addr, err = netip.ParseAddr(text)
		d.Prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	switch {
	case err != nil:
		return d, errors.New("not an address or CIDR")
	case d.Prefix.Bits() == 0:
		return d, errors.New("all addresses, which job.network: bridge already allows")
	case d.Prefix.Addr().Is4In6():
		return d, errors.New("an IPv4-mapped IPv6 address")
	}
	d.Prefix = d.Prefix.Masked()
	return d, nil
}

// validateNetworks checks the list of what a job may reach besides the Internet.
func validateNetworks(j Job, bad func(key, format string, args ...any)) {
	const key = "job.allowed_networks"
	for _, s := range j.AllowedNetworks {
		switch d, err := ParseDestination(s); {
		case err != nil:
			bad(key, "%.80q: %v; write an address or CIDR, with or without a port, such as 10.1.2.0/24 or 10.1.2.3:5000", s, err)
		case d.Prefix.Addr().IsLoopback() || d.Prefix.Addr().IsLinkLocalUnicast():
			bad(key, "%s is always closed to jobs; leave it out", s)
		}
	}
	if len(j.AllowedNetworks) > maxDestinations {
		bad(key, "%d entries are too many; write at most %d, with larger networks", len(j.AllowedNetworks), maxDestinations)
	}
}

// unusedNetworks says that AllowedNetworks has no effect; "" if it has. A plan says it by itself, of what then holds.
func (j Job) unusedNetworks() string {
	if len(j.AllowedNetworks) == 0 || j.Network == NetworkInternet {
		return ""
	}
	return "job.allowed_networks has no effect without job.network: internet; add that, or leave it out"
}

// NetworksWarning says which of AllowedNetworks have no effect, or are the address of a network without its size; "" for none.
func (j Job) NetworksWarning() string {
	var all []string
	for _, s := range j.AllowedNetworks {
		d, err := ParseDestination(s)
		if addr := d.Prefix.Addr(); err == nil && d.Prefix.IsSingleIP() && addr.Is4() && strings.HasSuffix(addr.String(), ".0") && !strings.Contains(s, "/") {
			bits := 32
			for four := addr.As4(); bits > 8 && four[bits/8-1] == 0; bits -= 8 {
			}
			all = append(all, fmt.Sprintf("job.allowed_networks: %s is one address; write %s for the network", s, strings.Replace(s, addr.String(), fmt.Sprintf("%s/%d", addr, bits), 1)))
		}
	}
	six := slices.DeleteFunc(slices.Clone(j.AllowedNetworks), func(s string) bool {
		d, err := ParseDestination(s)
		return err != nil || d.Prefix.Addr().Is4()
	})
	if len(six) > 0 {
		all = append(all, "job.allowed_networks: "+strings.Join(six, ", ")+": no job reaches an IPv6 address, for containers have only IPv4; write the IPv4 address")
	}
	return strings.Join(all, "; ")
}
