// Package dns is the source of addresses that a DNS name has.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nordix/meridio-nsp/pkg/external"
)

// Family is a kind of address.
type Family uint16

// The families, as the types of their records.
const (
	IPv4 = Family(dns.TypeA)
	IPv6 = Family(dns.TypeAAAA)
)

func (f Family) String() string { return dns.TypeToString[uint16(f)] }

// Config says what to resolve.
type Config struct {
	// Name is taken as fully qualified.
	Name     string
	Families []Family
	// Resolvers are asked in order, each as address:port; none stands for those of /etc/resolv.conf.
	Resolvers []string
	// MinTTL and MaxTTL bound the time between two queries, which the records' TTLs decide.
	MinTTL, MaxTTL time.Duration
	// Timeout is how long one resolver may take for one answer, default 2 s.
	Timeout time.Duration
}

const (
	defaultTimeout = 2 * time.Second
	resolvConf     = "/etc/resolv.conf"
)

// New makes the source.
func New(cfg Config) external.Source {
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	cfg.Name = dns.CanonicalName(cfg.Name)
	return &source{cfg}
}

type source struct{ cfg Config }

// Run implements external.Source.
func (s *source) Run(ctx context.Context, report func(external.Report)) {
	for {
		answers, err := s.resolve(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := s.cfg.MinTTL
		if err != nil {
			report(failure(s.cfg.Name, err))
		} else {
			report(external.Report{Endpoints: endpoints(answers.addrs)})
			pause = min(max(answers.ttl, s.cfg.MinTTL), s.cfg.MaxTTL)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// answer is what a name has: addresses, and for how long that is true.
type answer struct {
	addrs []netip.Addr
	ttl   time.Duration
}

// resolve asks for every family, at the same time. It fails if one of them fails: half of the addresses would look as if the
// others were gone.
func (s *source) resolve(ctx context.Context) (answer, error) {
	resolvers, err := s.resolvers()
	if err != nil {
		return answer{}, err
	}
	// Each family has its place: what is reported does not depend on who answers first.
	answers, errs := make([]answer, len(s.cfg.Families)), make([]error, len(s.cfg.Families))
	var asking sync.WaitGroup
	for i, family := range s.cfg.Families {
		asking.Go(func() {
			q := query{name: s.cfg.Name, family: family, resolvers: resolvers, timeout: s.cfg.Timeout}
			answers[i], errs[i] = q.run(ctx)
		})
	}
	asking.Wait()
	if err := errors.Join(errs...); err != nil {
		return answer{}, err
	}
	all := answer{ttl: s.cfg.MaxTTL}
	for _, a := range answers {
		all.addrs = append(all.addrs, a.addrs...)
		all.ttl = min(all.ttl, a.ttl)
	}
	if len(all.addrs) == 0 {
		return answer{}, errNoAddresses
	}
	return all, nil
}

func (s *source) resolvers() ([]string, error) {
	if len(s.cfg.Resolvers) > 0 {
		return s.cfg.Resolvers, nil
	}
	conf, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("reading the pod's resolvers: %w", err)
	}
	if len(conf.Servers) == 0 {
		return nil, fmt.Errorf("%s names no resolver", resolvConf)
	}
	var servers []string
	for _, server := range conf.Servers {
		servers = append(servers, hostPort(server, conf.Port))
	}
	return servers, nil
}

var (
	errNotFound    = errors.New("the name does not exist")
	errNoAddresses = errors.New("the name has no addresses")
)

func failure(name string, err error) external.Report {
	reason := external.ReasonResolverFailed
	switch {
	case errors.Is(err, errNotFound):
		reason = external.ReasonNameNotFound
	case errors.Is(err, errNoAddresses):
		reason = external.ReasonNoAddresses
	}
	return external.Failed(reason, "Resolving %s: %v.", name, err)
}

func endpoints(addrs []netip.Addr) []external.Endpoint {
	var list []external.Endpoint
	for _, a := range addrs {
		list = append(list, external.Endpoint{Addr: a, Ready: true, Serving: true})
	}
	return list
}
