package iface

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// manager is the ConfigurationManager of the trenches, over gRPC.
type manager struct {
	address     func(trench string) string
	credentials credentials.TransportCredentials
	perRPC      credentials.PerRPCCredentials
}

// watch implements configuration. Each watch has a connection of its own, so that a name that means another address is looked up.
func (m *manager) watch(ctx context.Context, trench string, tell func(*settings)) error {
	conn, err := dial(m.address(trench), m.credentials, m.perRPC)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	c := nspv1.NewConfigurationManagerClient(conn)
	name := &nspv1.Trench{Name: trench}
	vips, limits := make(chan []netip.Prefix), make(chan map[string]uint32)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return receive(ctx, vips, prefixes, func() (receiver[*nspv1.VipResponse], error) {
			return c.WatchVip(ctx, &nspv1.Vip{Trench: name})
		})
	})
	group.Go(func() error {
		return receive(ctx, limits, limitsOf, func() (receiver[*nspv1.StreamResponse], error) {
			return c.WatchStream(ctx, &nspv1.Stream{Conduit: &nspv1.Conduit{Trench: name}})
		})
	})
	group.Go(func() error { return join(ctx, vips, limits, tell) })
	if err := group.Wait(); err != nil {
		return fmt.Errorf("watching the configuration of trench %s at %s: %w", trench, m.address(trench), err)
	}
	return nil
}

type receiver[M any] interface{ Recv() (M, error) }

// receive hands on what a watch brings, until that ends.
func receive[M, T any](ctx context.Context, out chan<- T, read func(M) T, open func() (receiver[M], error)) error {
	w, err := open()
	for err == nil {
		var m M
		if m, err = w.Recv(); err == nil {
			select {
			case out <- read(m):
			case <-ctx.Done():
			}
		}
	}
	return err
}

// join tells once both are known, and at every change of either.
func join(ctx context.Context, vips <-chan []netip.Prefix, limits <-chan map[string]uint32, tell func(*settings)) error {
	var s settings
	for gotVIPs, gotLimits := false, false; ; {
		select {
		case s.VIPs = <-vips:
			gotVIPs = true
		case s.Limits = <-limits:
			gotLimits = true
		case <-ctx.Done():
			return ctx.Err()
		}
		if gotVIPs && gotLimits {
			tell(&settings{s.VIPs, s.Limits})
		}
	}
}

// prefixes are the VIPs that can be read; others are nobody's.
func prefixes(r *nspv1.VipResponse) []netip.Prefix {
	out := []netip.Prefix{}
	for _, v := range r.GetVips() {
		if p, err := netip.ParsePrefix(v.GetAddress()); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

func limitsOf(r *nspv1.StreamResponse) map[string]uint32 {
	out := map[string]uint32{}
	for _, s := range r.GetStreams() {
		out[s.GetConduit().GetName()+"/"+s.GetName()] = stream.MaxTargets(s.GetMaxTargets())
	}
	return out
}
