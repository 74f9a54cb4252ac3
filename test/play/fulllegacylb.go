package play

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// FullLegacyLB is a load balancer of Meridio 1.x with all that it asks the NSP: it takes the streams from the configuration, and it works only
// while the frontend of its own pod is registered. What it has survives a broken watch.
type FullLegacyLB struct {
	*LegacyLB
	configuration   nspv1.ConfigurationManagerClient
	trench, conduit string
	host            string
}

// NewFullLegacyLB makes a load balancer of a conduit in the pod whose host name is given.
func NewFullLegacyLB(conn grpc.ClientConnInterface, trench, conduit, host string) *FullLegacyLB {
	return &FullLegacyLB{
		LegacyLB:      NewLegacyLB(conn, trench, conduit),
		configuration: nspv1.NewConfigurationManagerClient(conn), trench: trench, conduit: conduit, host: host,
	}
}

// Run watches until ctx ends.
func (lb *FullLegacyLB) Run(ctx context.Context) error {
	k := newKeeper(ctx)
	defer k.wait()
	t := &nspv1.Trench{Name: lb.trench}
	k.keep("vips", func(ctx context.Context) error {
		return receive(lb.configuration.WatchVip(ctx, &nspv1.Vip{Trench: t}))(nil)
	})
	k.keep("conduit", func(ctx context.Context) error {
		return receive(lb.configuration.WatchConduit(ctx, &nspv1.Conduit{Name: lb.conduit, Trench: t}))(nil)
	})
	k.keep("frontends", func(ctx context.Context) error {
		return receive(lb.registry.Watch(ctx, &nspv1.Target{Status: nspv1.Target_ANY, Type: nspv1.Target_FRONTEND}))(
			func(list *nspv1.TargetResponse) { lb.frontends(k, list.GetTargets()) })
	})
	<-ctx.Done()
	return nil
}

// frontends starts the work where the own frontend is among those registered, whatever its status, and ends it where it is not.
func (lb *FullLegacyLB) frontends(k *keeper, list []*nspv1.Target) {
	for _, f := range list {
		if f.GetContext()["identifier"] == lb.host {
			k.keep("streams", lb.watchStreams)
			return
		}
	}
	k.drop("streams")
}

func (lb *FullLegacyLB) watchStreams(ctx context.Context) error {
	streams := newKeeper(ctx)
	defer streams.wait()
	defer streams.dropAll()
	of := &nspv1.Conduit{Name: lb.conduit, Trench: &nspv1.Trench{Name: lb.trench}}
	return receive(lb.configuration.WatchStream(ctx, &nspv1.Stream{Conduit: of}))(func(list *nspv1.StreamResponse) {
		names := make(map[string]bool)
		for _, s := range list.GetStreams() {

			streams.keep(s.GetName()+" targets", func(ctx context.Context) error { return lb.watchTargets(ctx, proto.CloneOf(s)) })
			streams.keep(s.GetName()+" flows", func(ctx context.Context) error {
				return receive(lb.configuration.WatchFlow(ctx, &nspv1.Flow{Stream: s}))(nil)
			})
			names[s.GetName()+" targets"], names[s.GetName()+" flows"] = true, true
		}
		streams.only(names)
	})
}

func (lb *FullLegacyLB) watchTargets(ctx context.Context, s *nspv1.Stream) error {
	return receive(lb.registry.Watch(ctx, &nspv1.Target{Status: nspv1.Target_ENABLED, Type: nspv1.Target_DEFAULT, Stream: s}))(
		func(list *nspv1.TargetResponse) { lb.take(s.GetName(), list.GetTargets(), time.Now()) })
}

// receive hands every message of a watch to f, which may be nil, until it breaks.
func receive[T any](watch grpc.ServerStreamingClient[T], err error) func(f func(*T)) error {
	return func(f func(*T)) error {
		for err == nil {
			var m *T
			if m, err = watch.Recv(); err == nil && f != nil {
				f(m)
			}
		}
		return err
	}
}
