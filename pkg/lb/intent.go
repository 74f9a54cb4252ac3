package lb

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/lb/nft"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// intent is what the load balancer was told last, by several watches.
type intent struct {
	mu sync.Mutex
	// nil where the watch has not said anything yet.
	vips    *nspv1.VipResponse
	conduit *nspv1.ConduitResponse
	streams *nspv1.StreamResponse
	flows   *nspv1.FlowResponse
	// targets by stream and addresses.
	targets map[targetKey]told
	told    bool
	// limits are the streams whose sources are limited, by name.
	limits map[string]*sources.Set
	// news are causes that were not seen in the kernel yet, the first maxNews of them.
	news []cause
	// changed holds a token when any of it changed.
	changed chan struct{}
}

type targetKey struct{ stream, addresses string }

// told is one target as the NSP says it.
type told struct {
	identifier uint32
	addresses  []string
	draining   bool
	instance   string
}

// cause is why something was told: when the cluster reported it, if that is known, and when it arrived here.
type cause struct{ reported, received time.Time }

// maxNews bounds the causes that are kept: while the kernel takes nothing, or not all is told yet, each change adds some.
const maxNews = 10_000

func newIntent() *intent {
	return &intent{targets: map[targetKey]told{}, limits: map[string]*sources.Set{}, changed: make(chan struct{}, 1)}
}

func (in *intent) update(f func()) {
	in.mu.Lock()
	f()
	in.mu.Unlock()
	select {
	case in.changed <- struct{}{}:
	default:
	}
}

func (in *intent) setVips(m *nspv1.VipResponse)        { in.update(func() { in.vips = m }) }
func (in *intent) setConduit(m *nspv1.ConduitResponse) { in.update(func() { in.conduit = m }) }
func (in *intent) setStreams(m *nspv1.StreamResponse)  { in.update(func() { in.streams = m }) }
func (in *intent) setFlows(m *nspv1.FlowResponse)      { in.update(func() { in.flows = m }) }

// setTargets tells all targets that take packets.
func (in *intent) setTargets(targets map[targetKey]told, news ...cause) {
	in.update(func() {
		in.targets, in.told = targets, true
		in.keep(news)
	})
}

// changeTargets changes some, and the limits of some streams.
func (in *intent) changeTargets(change func(map[targetKey]told, map[string]*sources.Set), news ...cause) {
	in.update(func() {
		change(in.targets, in.limits)
		in.told = true
		in.keep(news)
	})
}

// keep keeps as many causes as there is room for. The lock is held.
func (in *intent) keep(news []cause) {
	in.news = append(in.news, news[:min(len(news), maxNews-len(in.news))]...)
}

// missing names what the load balancer was not told yet. As long as there is anything, the kernel keeps what it has: half of what is desired
// would be an order to drop the other half.
func (in *intent) missing() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	var out []string
	for _, w := range []struct {
		is   bool
		name string
	}{{in.vips == nil, "VIPs"}, {in.conduit == nil, "conduit"}, {in.streams == nil, "streams"}, {in.flows == nil, "flows"}, {!in.told, "targets"}} {
		if w.is {
			out = append(out, w.name)
		}
	}
	return strings.Join(out, ", ")
}

// desired is what the data plane shall do, what cannot be understood, by name, and the causes of the changes.
func (in *intent) desired() (*nft.Desired, nft.Refused, []cause) {
	in.mu.Lock()
	defer in.mu.Unlock()
	d, refused := &nft.Desired{}, nft.Refused{}
	for _, v := range in.vips.GetVips() {
		p, err := vipOf(v)
		if err != nil {
			refused["vip "+v.GetName()] = err
			continue
		}
		d.VIPs = append(d.VIPs, p)
	}
	for _, f := range in.flows.GetFlows() {
		flow, err := flowOf(f)
		if err != nil {
			refused["flow "+f.GetName()] = err
			continue
		}
		if set, limited := in.limits[flow.Stream]; limited {
			flow.Sources = set.Limit(flow.Sources)
		}
		d.Flows = append(d.Flows, flow)
	}
	for _, c := range in.conduit.GetConduits() {
		for _, n := range c.GetDestinationPortNats() {
			nat, err := natOf(n)
			if err != nil {
				refused[fmt.Sprintf("port nat %s %d", n.GetProtocol(), n.GetPort())] = err
				continue
			}
			d.NATs = append(d.NATs, nat)
		}
	}
	d.Streams = in.streamsOf(refused)
	news := in.news
	in.news = nil
	return d, refused, news
}

func (in *intent) streamsOf(refused nft.Refused) []nft.Stream {
	type place struct {
		stream     string
		identifier uint32
	}
	members, taken := map[string][]nft.Target{}, map[place]bool{}
	limits := map[string]uint32{}
	for _, s := range in.streams.GetStreams() {
		limits[s.GetName()] = stream.MaxTargets(s.GetMaxTargets())
	}
	// In the order of the keys, so that all load balancers refuse the same of two with one identifier.
	for _, key := range slices.SortedFunc(maps.Keys(in.targets), targetKey.compare) {
		t := in.targets[key]
		target, err := targetOf(t, limits[key.stream])
		if err == nil && taken[place{key.stream, t.identifier}] {
			err = fmt.Errorf("the identifier %d is that of another target", t.identifier)
		}
		if err != nil {
			refused["target "+key.stream+" "+key.addresses] = err
			continue
		}
		members[key.stream], taken[place{key.stream, t.identifier}] = append(members[key.stream], target), true
	}
	var out []nft.Stream
	for _, s := range in.streams.GetStreams() {
		out = append(out, nft.Stream{Name: s.GetName(), MaxTargets: int(s.GetMaxTargets()), Targets: members[s.GetName()]})
	}
	return out
}

func (k targetKey) compare(o targetKey) int {
	return cmp.Or(cmp.Compare(k.stream, o.stream), cmp.Compare(k.addresses, o.addresses))
}

func targetOf(t told, limit uint32) (nft.Target, error) {
	var errs []error
	out := nft.Target{Identifier: t.identifier, Draining: t.draining, Instance: t.instance}
	out.Addresses = slices.SortedFunc(slices.Values(each(t.addresses, addressOf, &errs)), netip.Addr.Compare)
	switch {
	case limit == 0:
		errs = append(errs, errors.New("its stream is not in the configuration"))
	case t.identifier == 0 || t.identifier > limit:
		errs = append(errs, fmt.Errorf("the identifier %d is not in 1..%d", t.identifier, limit))
	case len(out.Addresses) == 0:
		errs = append(errs, errors.New("it has no address"))
	}
	return out, errors.Join(errs...)
}

// postpone keeps causes for the next attempt.
func (in *intent) postpone(news []cause) {
	in.mu.Lock()
	defer in.mu.Unlock()
	later := in.news
	in.news = news
	in.keep(later)
}
