package sidecar

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"
)

// lookAgain is how often the addresses are read where nothing tells that they changed.
const lookAgain = 5 * time.Second

// settleTime lets the changes of one reconfiguration become one report.
const settleTime = 100 * time.Millisecond

// addresses are those of all interfaces of the network namespace, as CIDRs, sorted. Those that every pod has are left out:
// they say nothing about whose a registration is. VIPs say nothing either, but no interface tells which address is one; the
// NSP sees that several pods bear them.
func addresses() ([]string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("reading the interface addresses: %w", err)
	}
	var found []netip.Prefix
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if ip := p.Addr(); err == nil && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !ip.IsMulticast() && !ip.IsUnspecified() {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var out []string
	for _, p := range slices.Compact(found) {
		out = append(out, p.String())
	}
	return out, nil
}

// watchAddresses tells the addresses at once and whenever they have changed, until ctx ends.
func watchAddresses(ctx context.Context, read func() ([]string, error), every time.Duration, log *slog.Logger, tell func([]string)) error {
	changed := subscribe(ctx, log)
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last []string
	for first := true; ; {
		now, err := read()
		switch {
		case err != nil:
			log.Warn("the interface addresses cannot be reported", "error", err)
		case first || !slices.Equal(now, last):
			first, last = false, now
			log.Info("interface addresses", "addresses", now)
			tell(now)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-changed:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(settleTime):
			}
		}
	}
}
