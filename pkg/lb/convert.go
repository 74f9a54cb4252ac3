package lb

import (
	"errors"
	"fmt"
	"net/netip"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/lb/nft"
	"github.com/nordix/meridio-nsp/pkg/sources"
)

// flowOf reads a flow of the configuration.
func flowOf(f *nspv1.Flow) (nft.Flow, error) {
	out := nft.Flow{Name: f.GetName(), Stream: f.GetStream().GetName(), Priority: f.GetPriority()}
	var errs []error
	out.VIPs = each(f.GetVips(), vipOf, &errs)
	out.Sources = each(f.GetSourceSubnets(), sources.Parse, &errs)
	out.Protocols = each(f.GetProtocols(), nft.ParseProtocol, &errs)
	out.DestinationPorts = each(f.GetDestinationPortRanges(), nft.ParsePortRange, &errs)
	out.SourcePorts = each(f.GetSourcePortRanges(), nft.ParsePortRange, &errs)
	out.ByteMatches = each(f.GetByteMatches(), nft.ParseByteMatch, &errs)
	return out, errors.Join(errs...)
}

// natOf reads a port translation of the conduit.
func natOf(n *nspv1.Conduit_PortNat) (nft.PortNAT, error) {
	var errs []error
	protocol, err := nft.ParseProtocol(n.GetProtocol())
	if err != nil {
		errs = append(errs, err)
	}
	if n.GetPort() > 65535 || n.GetTargetPort() > 65535 {
		errs = append(errs, fmt.Errorf("%d or %d is no port", n.GetPort(), n.GetTargetPort()))
	}
	out := nft.PortNAT{Protocol: protocol, Port: uint16(n.GetPort()), TargetPort: uint16(n.GetTargetPort())}
	out.VIPs = each(n.GetVips(), vipOf, &errs)
	return out, errors.Join(errs...)
}

func vipOf(v *nspv1.Vip) (netip.Prefix, error) {
	p, err := sources.Parse(v.GetAddress())
	if err != nil {
		return p, fmt.Errorf("VIP %s: %w", v.GetName(), err)
	}
	return p, nil
}

// addressOf reads the address of a target, whose prefix length does not matter here.
func addressOf(s string) (netip.Addr, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Addr().Unmap(), nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is no address", s)
	}
	return a.Unmap(), nil
}

// each converts a list; what cannot be converted goes to errs.
func each[F, T any](from []F, convert func(F) (T, error), errs *[]error) []T {
	var out []T
	for _, f := range from {
		t, err := convert(f)
		if err != nil {
			*errs = append(*errs, err)
			continue
		}
		out = append(out, t)
	}
	return out
}
