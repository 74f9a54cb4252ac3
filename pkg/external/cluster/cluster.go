// Package cluster is the source of addresses that a Service of another Kubernetes cluster has.
package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"github.com/nordix/meridio-nsp/pkg/external"
)

// Config says which Service.
type Config struct {
	Client             kubernetes.Interface
	Namespace, Service string
	// MinPause and MaxPause bound the pause between two attempts, which doubles; default 1 s and 30 s.
	MinPause, MaxPause time.Duration
}

// New makes the source. The caller ends the client's idle connections, if it minds them.
func New(cfg Config) external.Source {
	if cfg.MinPause == 0 {
		cfg.MinPause = time.Second
	}
	if cfg.MaxPause == 0 {
		cfg.MaxPause = 30 * time.Second
	}
	return &source{cfg: cfg, slices: cfg.Client.DiscoveryV1().EndpointSlices(cfg.Namespace)}
}

type source struct {
	cfg    Config
	slices discoveryclient.EndpointSliceInterface
	// known are the slices by UID: a slice that was deleted and made again is another one.
	known map[types.UID]*discoveryv1.EndpointSlice
}

// Run implements external.Source. A list comes first, and again after each trouble, so that what went while nobody watched is
// gone; an informer would not say that it lost its connection, which is what decides for how long the last state counts.
func (s *source) Run(ctx context.Context, report func(external.Report)) {
	pause := s.cfg.MinPause
	for ctx.Err() == nil {
		version, err := s.list(ctx)
		if err == nil {
			pause = s.cfg.MinPause
			report(s.report())
			err = s.watch(ctx, version, report)
		}
		if ctx.Err() != nil {
			return
		}
		// That the server ends a watch in good order, or forgets an old version, is no failure.
		if err != nil && !expired(err) {
			report(external.Failed(external.ReasonClusterUnreachable, "Watching the endpoints of Service %s/%s: %v.",
				s.cfg.Namespace, s.cfg.Service, err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, s.cfg.MaxPause)
	}
}

func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

func (s *source) options() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labels.Set{discoveryv1.LabelServiceName: s.cfg.Service}.String()}
}

// list takes the state of the other cluster and returns its version.
func (s *source) list(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := s.slices.List(ctx, s.options())
	if err != nil {
		return "", err
	}
	s.known = make(map[types.UID]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		s.known[list.Items[i].UID] = &list.Items[i]
	}
	return list.ResourceVersion, nil
}

// watch follows changes until the watch ends; nil is an end in good order, after which a new list costs little.
func (s *source) watch(ctx context.Context, version string, report func(external.Report)) error {
	options := s.options()
	options.ResourceVersion, options.AllowWatchBookmarks = version, true
	watcher, err := s.slices.Watch(ctx, options)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		slice, ok := event.Object.(*discoveryv1.EndpointSlice)
		switch {
		case event.Type == watch.Error:
			return apierrors.FromObject(event.Object)
		case event.Type == watch.Bookmark:
			continue
		case !ok:
			return fmt.Errorf("unexpected object %T", event.Object)
		case event.Type == watch.Deleted:
			delete(s.known, slice.UID)
		default:
			s.known[slice.UID] = slice
		}
		report(s.report())
	}
	return nil
}

// report is the state as known. A Service that has no endpoints, or does not exist, has no addresses, and that is an answer.
func (s *source) report() external.Report {
	var endpoints []external.Endpoint
	for _, slice := range s.known {
		for _, e := range slice.Endpoints {
			if converted, ok := convert(slice.AddressType, e); ok {
				endpoints = append(endpoints, converted)
			}
		}
	}
	return external.Report{Endpoints: endpoints}
}

// convert takes the first address, as kube-proxy does: further ones are reserved. Nil conditions are read as discovery/v1 says.
func convert(kind discoveryv1.AddressType, e discoveryv1.Endpoint) (external.Endpoint, bool) {
	if kind == discoveryv1.AddressTypeFQDN || len(e.Addresses) == 0 {
		return external.Endpoint{}, false
	}
	addr, err := netip.ParseAddr(e.Addresses[0])
	if err != nil {
		return external.Endpoint{}, false
	}
	c := e.Conditions
	ready := c.Ready == nil || *c.Ready
	return external.Endpoint{
		Addr:        addr,
		Ready:       ready,
		Serving:     c.Serving == nil && ready || c.Serving != nil && *c.Serving,
		Terminating: c.Terminating != nil && *c.Terminating,
	}, true
}
