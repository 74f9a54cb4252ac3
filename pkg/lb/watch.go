package lb

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// watches keeps the watches of nsp.v1 going.
type watches struct {
	log *slog.Logger
	// live says of each watch whether it has answered since it was last begun.
	mu   sync.Mutex
	live map[string]bool
}

// allLive says whether all watches are.
func (w *watches) allLive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.live) > 0 && !slices.Contains(slices.Collect(maps.Values(w.live)), false)
}

func (w *watches) set(name string, live bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live[name] = live
}

// The pause before a watch begins anew.
const (
	minPause = 200 * time.Millisecond
	maxPause = 5 * time.Second
)

// follow hands every message of a watch to take, and begins it anew when it breaks, until ctx ends.
func follow[T any](ctx context.Context, w *watches, name string, open func(context.Context) (grpc.ServerStreamingClient[T], error), take func(*T)) {
	w.set(name, false)
	said := ""
	for pause := minPause; ctx.Err() == nil; {
		err := receive(ctx, open, func(m *T) {
			pause, said = minPause, ""
			w.set(name, true)
			take(m)
		})
		w.set(name, false)
		if ctx.Err() != nil {
			return
		}
		if reason := fmt.Sprint(err); reason != said {
			said = reason
			w.log.InfoContext(ctx, "watch was interrupted", "watch", name, "error", err)
		}
		// Full jitter, so that load balancers that lost the NSP together do not come back together.
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(pause + 1)):
		}
		pause = min(2*pause, maxPause)
	}
}

func receive[T any](ctx context.Context, open func(context.Context) (grpc.ServerStreamingClient[T], error), take func(*T)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx)
	for err == nil {
		var m *T
		if m, err = stream.Recv(); err == nil {
			take(m)
		}
	}
	return err
}

// configuration keeps the four watches of a conduit's configuration going.
func (b *Balancer) configuration(ctx context.Context, conn grpc.ClientConnInterface) {
	c := nspv1.NewConfigurationManagerClient(conn)
	trench := &nspv1.Trench{Name: b.cfg.Trench}
	conduit := &nspv1.Conduit{Name: b.cfg.Conduit, Trench: trench}
	of := &nspv1.Stream{Conduit: conduit}
	var running sync.WaitGroup
	running.Go(func() {
		follow(ctx, b.watches, "vips", func(ctx context.Context) (grpc.ServerStreamingClient[nspv1.VipResponse], error) {
			return c.WatchVip(ctx, &nspv1.Vip{Trench: trench})
		}, b.intent.setVips)
	})
	running.Go(func() {
		follow(ctx, b.watches, "conduit", func(ctx context.Context) (grpc.ServerStreamingClient[nspv1.ConduitResponse], error) {
			return c.WatchConduit(ctx, conduit)
		}, b.intent.setConduit)
	})
	running.Go(func() {
		follow(ctx, b.watches, "streams", func(ctx context.Context) (grpc.ServerStreamingClient[nspv1.StreamResponse], error) {
			return c.WatchStream(ctx, of)
		}, b.intent.setStreams)
	})
	running.Go(func() {
		follow(ctx, b.watches, "flows", func(ctx context.Context) (grpc.ServerStreamingClient[nspv1.FlowResponse], error) {
			return c.WatchFlow(ctx, &nspv1.Flow{Stream: of})
		}, b.intent.setFlows)
	})
	running.Wait()
}

// registry keeps the watch of Meridio 1.x for targets going.
func (b *Balancer) registry(ctx context.Context, conn grpc.ClientConnInterface) {
	c := nspv1.NewTargetRegistryClient(conn)
	filter := &nspv1.Target{
		Status: nspv1.Target_ENABLED, Type: nspv1.Target_DEFAULT,
		Stream: &nspv1.Stream{Conduit: &nspv1.Conduit{Name: b.cfg.Conduit, Trench: &nspv1.Trench{Name: b.cfg.Trench}}},
	}
	follow(ctx, b.watches, "targets", func(ctx context.Context) (grpc.ServerStreamingClient[nspv1.TargetResponse], error) {
		return c.Watch(ctx, filter)
	}, func(m *nspv1.TargetResponse) { b.intent.setTargets(registered(m), cause{received: time.Now()}) })
}

// registered are the targets of a list. One without a number as identifier is there with 0, so that it is refused by name.
func registered(m *nspv1.TargetResponse) map[targetKey]told {
	out := map[targetKey]told{}
	for _, t := range m.GetTargets() {
		id, _ := strconv.ParseUint(t.GetContext()["identifier"], 10, 32)
		ips := slices.Sorted(slices.Values(t.GetIps()))
		out[targetKey{t.GetStream().GetName(), strings.Join(ips, ",")}] = told{identifier: uint32(id), addresses: ips}
	}
	return out
}

// fed takes what the feed has to say.
func (b *Balancer) fed(u client.Update) {
	var news []cause
	for _, t := range slices.Concat(u.Set, u.Removed) {
		c := cause{received: u.Received}
		if t.GetCaused() != nil && !u.First {
			c.reported = t.GetCaused().AsTime()
		}
		news = append(news, c)
	}
	b.intent.changeTargets(func(targets map[targetKey]told, limits map[string]*sources.Set) {
		for _, t := range u.Removed {
			delete(targets, targetKey{t.Key.Stream, t.Key.Addresses})
		}
		for _, t := range u.Set {
			key := targetKey{t.Key.Stream, t.Key.Addresses}
			switch t.GetState() {
			case targetpoolv1.Target_STATE_ACTIVE, targetpoolv1.Target_STATE_DRAINING:
				targets[key] = told{
					identifier: t.GetIdentifier(), addresses: t.GetAddresses(), instance: t.GetPod(),
					draining: t.GetState() == targetpoolv1.Target_STATE_DRAINING,
				}
			default:
				delete(targets, key)
			}
		}
		for _, s := range u.Sources {
			b.limited(s, limits)
		}
	}, news...)
}

// limited takes in from where a stream may be used. A prefix that is not understood lets nobody in.
func (b *Balancer) limited(s *targetpoolv1.StreamSources, limits map[string]*sources.Set) {
	name := s.GetStream().GetName()
	if s.GetUnlimited() {
		delete(limits, name)
		return
	}
	prefixes, err := sources.ParseAll(s.GetPrefixes())
	if err != nil {
		b.log.Warn("a policy has prefixes that are not understood", "stream", name, "error", err)
	}
	limits[name] = sources.Of(prefixes...)
}
