// Package provider is the source of addresses that a process of its own knows, over resolver.v1.
package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
	"github.com/nordix/meridio-nsp/pkg/external"
)

// Config says what to ask whom.
type Config struct {
	// Conn reaches the provider; it belongs to the caller.
	Conn    grpc.ClientConnInterface
	Name    string
	Locator string
	// Patience is how long the first answer may take before that is a failure, default 30 s. The wait goes on.
	Patience time.Duration
	// MinPause and MaxPause bound the pause between two streams, which doubles; default 1 s and 30 s.
	MinPause, MaxPause time.Duration
}

// New makes the source.
func New(cfg Config) external.Source {
	if cfg.Patience == 0 {
		cfg.Patience = 30 * time.Second
	}
	if cfg.MinPause == 0 {
		cfg.MinPause = time.Second
	}
	if cfg.MaxPause == 0 {
		cfg.MaxPause = 30 * time.Second
	}
	return &source{cfg}
}

type source struct{ cfg Config }

// Run implements external.Source.
func (s *source) Run(ctx context.Context, report func(external.Report)) {
	for pause := s.cfg.MinPause; ; pause = min(2*pause, s.cfg.MaxPause) {
		sound, err := s.stream(ctx, report)
		if ctx.Err() != nil {
			return
		}
		report(s.failure(err))
		if sound {
			pause = s.cfg.MinPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// message is what came, or how the stream ended.
type message struct {
	*resolverv1.WatchResponse
	err error
}

// stream follows one stream to its end and returns whether it said anything of use.
func (s *source) stream(ctx context.Context, report func(external.Report)) (sound bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := resolverv1.NewResolverClient(s.cfg.Conn).Watch(ctx, &resolverv1.WatchRequest{Locator: s.cfg.Locator})
	if err != nil {
		return false, err
	}
	messages := receive(ctx, stream)
	silence := time.After(s.cfg.Patience)
	for {
		select {
		case <-ctx.Done():
			return sound, ctx.Err()
		case <-silence:
			silence = nil
			report(external.Failed(external.ReasonProviderUnavailable, "Provider %s says nothing of the resource.", s.cfg.Name))
		case m := <-messages:
			if m.err != nil {
				return sound, m.err
			}
			silence = nil
			endpoints, err := convert(m.WatchResponse)
			if err != nil {
				report(external.Failed(external.ReasonProviderInvalid, "Provider %s: %v.", s.cfg.Name, err))
				continue
			}
			sound = true
			report(external.Report{Endpoints: endpoints})
			if v := m.GetValidity().AsDuration(); v > 0 {
				silence = time.After(v)
			}
		}
	}
}

// receive reads the stream until it or ctx ends.
func receive(ctx context.Context, stream grpc.ServerStreamingClient[resolverv1.WatchResponse]) <-chan message {
	messages := make(chan message)
	go func() {
		for {
			response, err := stream.Recv()
			select {
			case messages <- message{response, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return messages
}

// failure names the fault as precisely as the provider does.
func (s *source) failure(err error) external.Report {
	if errors.Is(err, io.EOF) {
		return external.Failed(external.ReasonProviderUnavailable, "Provider %s has ended the stream.", s.cfg.Name)
	}
	reason := external.ReasonProviderUnavailable
	code := status.Code(err)
	switch code {
	case codes.NotFound, codes.InvalidArgument, codes.PermissionDenied:
		reason = external.ReasonLocatorRefused
	case codes.Unimplemented, codes.Internal, codes.DataLoss:
		reason = external.ReasonProviderInvalid
	}
	return external.Failed(reason, "Provider %s answers %s: %.256s.", s.cfg.Name, code, status.Convert(err).Message())
}

const maxIdentity = 2048

// convert refuses a message as a whole if it makes no sense: a provider that errs in one address may err in the others, or in
// what it left out. Addresses that make sense but cannot be used are ignored by the caller, one by one.
func convert(response *resolverv1.WatchResponse) ([]external.Endpoint, error) {
	if v := response.GetValidity(); v != nil && (!v.IsValid() || v.AsDuration() < 0) {
		return nil, fmt.Errorf("the validity is no duration")
	}
	endpoints := make([]external.Endpoint, 0, len(response.GetEndpoints()))
	for _, e := range response.GetEndpoints() {
		addr, err := netip.ParseAddr(e.GetAddress())
		if err != nil {
			return nil, fmt.Errorf("%.63q is no address", e.GetAddress())
		}
		if len(e.GetIdentity()) > maxIdentity {
			return nil, fmt.Errorf("the identity of %s is longer than %d bytes", addr, maxIdentity)
		}
		r := e.GetReadiness()
		endpoints = append(endpoints, external.Endpoint{
			Addr:        addr,
			Ready:       r == resolverv1.Readiness_READINESS_READY,
			Serving:     r == resolverv1.Readiness_READINESS_READY || r == resolverv1.Readiness_READINESS_DRAINING,
			Terminating: r == resolverv1.Readiness_READINESS_DRAINING,
			Identity:    e.GetIdentity(),
		})
	}
	return endpoints, nil
}
