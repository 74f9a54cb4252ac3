package server

import (
	"regexp"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// LegacyRegistration says which callers may register that prove no more than those of Meridio 1.x do.
type LegacyRegistration string

// What there is to choose.
const (
	LegacyAllow        LegacyRegistration = "allow"
	LegacyOwnNamespace LegacyRegistration = "own-namespace"
	LegacyDeny         LegacyRegistration = "deny"
)

// LegacyRegistrations are all of them, for messages and completion.
var LegacyRegistrations = []LegacyRegistration{LegacyAllow, LegacyOwnNamespace, LegacyDeny}

// LoadBalancer is an account that may watch feeds: all of them, those of a trench, or that of a conduit.
type LoadBalancer struct {
	Account         auth.ServiceAccount
	Trench, Conduit string
}

func (l LoadBalancer) covers(c stream.Conduit) bool {
	return (l.Trench == "" || l.Trench == c.Trench) && (l.Conduit == "" || l.Conduit == c.Name)
}

// permit says whether an account may have to do with a stream, or where the key names none, with any of this NSP.
func (cfg *Config) permit(a auth.ServiceAccount, k stream.Key) error {
	switch {
	case a.Namespace == cfg.Namespace:
		return nil
	case cfg.Permitted != nil:
		return cfg.Permitted(a, k)
	}
	return auth.Deny(auth.NoGrant, "%s is of another namespace and nothing grants it %s", a, k)
}

// permitTarget says whether an ExternalTarget may have to do with a stream.
func (cfg *Config) permitTarget(t auth.Target, k stream.Key) error {
	if cfg.PermittedTarget != nil {
		return cfg.PermittedTarget(t, k)
	}
	return auth.Deny(auth.NoGrant, "nothing grants ExternalTarget %s stream %s", t, k)
}

// mayFeed says whether a caller may watch a conduit as its load balancer does.
func (cfg *Config) mayFeed(c auth.Caller, conduit stream.Conduit) error {
	if !c.Accountable() || c.TrenchProcess {
		return nil
	}
	if len(cfg.LoadBalancers) == 0 && c.Account.Namespace == cfg.Namespace {
		return nil
	}
	for _, l := range cfg.LoadBalancers {
		if l.Account == c.Account && l.covers(conduit) {
			return nil
		}
	}
	return auth.Deny(auth.NoRole, "%s is no load balancer of conduit %s; see --load-balancer-accounts", who(c), conduit)
}

// mayList says whether a caller may see the registrations that a filter selects.
func (cfg *Config) mayList(c auth.Caller, f engine.Filter) error {
	if !c.Accountable() {
		return nil
	}
	k := stream.Key{Namespace: cfg.Namespace, Trench: f.Trench, Conduit: f.Conduit, Name: f.Stream}
	if c.Target.UID != "" {
		return cfg.permitTarget(c.Target, k)
	}
	return cfg.permit(c.Account, k)
}

// who is what an accountable caller is called.
func who(c auth.Caller) string {
	if c.Target.UID != "" {
		return "ExternalTarget " + c.Target.String()
	}
	return c.Account.String()
}

// mayRegister says whether a caller may register or unregister the target. Whose the target is, the registry knows.
func (cfg *Config) mayRegister(c auth.Caller, t registry.Target) error {
	switch {
	case c.Mode == auth.None:
		return nil
	case c.Accountable() && t.Type == registry.Frontend:
		return cfg.mayFeed(c, stream.Conduit{Namespace: cfg.Namespace, Trench: t.Stream.Trench, Name: t.Stream.Conduit})
	case c.Target.UID != "":
		return cfg.permitTarget(c.Target, t.Stream)
	case c.Mode == auth.ByToken && c.Pod == auth.Pod{}:
		return auth.Deny(auth.OtherPod, "the token of %s is not bound to a pod: use a projected one", c.Account)
	case c.Accountable():
		if err := cfg.permit(c.Account, t.Stream); err != nil {
			return err
		}
	}
	if c.Pod != (auth.Pod{}) {
		return nil
	}
	return cfg.mayRegisterAsBefore(c)
}

// mayRegisterAsBefore is for callers that prove no pod, as those of Meridio 1.x.
func (cfg *Config) mayRegisterAsBefore(c auth.Caller) error {
	switch {
	case cfg.LegacyRegistration == LegacyDeny:
		return auth.Deny(auth.LegacyDenied, "callers that prove no pod may not register; see --legacy-registration")
	case cfg.LegacyRegistration == LegacyOwnNamespace && c.Account.Namespace != cfg.Namespace:
		return auth.Deny(auth.LegacyDenied, "callers that are not known to be of namespace %s may not register; see --legacy-registration", cfg.Namespace)
	}
	if cfg.LegacyRegistered != nil {
		cfg.LegacyRegistered()
	}
	return nil
}

// trenchPod is the name of a pod of the StatefulSet that Meridio's operator makes for the NSP of a trench.
var trenchPod = regexp.MustCompile(`^nsp-(.+)-[0-9]+$`)

// mayRelay says whether a trench process may speak for the trench. It declares it, unless its pod's name says.
func mayRelay(c auth.Caller, trench string) error {
	if m := trenchPod.FindStringSubmatch(c.Pod.Name); m != nil && m[1] != trench {
		return auth.Deny(auth.OtherTrench, "pod %s is the NSP of trench %q and may not speak for trench %q", c.Pod, m[1], trench)
	}
	return nil
}

// speaksFor says whether a caller may have what is the workload's, and what that is called: whoever proves a pod means that one
// also where it names an address. Where later is set, the pod's addresses decide once they are known.
func speaksFor(c auth.Caller, w engine.Workload) (named engine.Workload, later bool, err error) {
	if c.Target.UID != "" || w.External {
		return speaksForTarget(c, w)
	}
	proven := engine.Workload{Namespace: c.Pod.Namespace, Pod: c.Pod.Name, PodUID: c.Pod.UID}
	switch {
	case w.Addr.IsValid() && proven != engine.Workload{}:
		return proven, false, nil
	case w.Addr.IsValid() && c.Mode != auth.ByToken:
		return w, c.Mode != auth.None, c.SpeaksForAddress(w.Addr)
	}
	later, err = c.SpeaksForPod(auth.Pod{Namespace: w.Namespace, Name: w.Pod, UID: w.PodUID})
	if err == nil && proven != (engine.Workload{}) {
		w = proven
	}
	return w, later, err
}

// speaksForTarget is speaksFor where the caller or the workload is an ExternalTarget.
func speaksForTarget(c auth.Caller, w engine.Workload) (named engine.Workload, later bool, err error) {
	switch {
	case c.Mode == auth.None:
		return w, false, nil
	case c.Target.UID == "":
		return w, false, auth.Deny(auth.OtherTarget, "the caller does not prove to be ExternalTarget %s: that takes a client certificate "+
			"with its spec.identity, and --authorisation=mtls", w)
	case !w.External || w.Namespace != c.Target.Namespace || w.Pod != c.Target.Name:
		return w, false, auth.Deny(auth.OtherTarget, "the certificate is that of ExternalTarget %s, the call is for %s", c.Target, w)
	}
	return engine.Workload{Namespace: c.Target.Namespace, Pod: c.Target.Name, PodUID: c.Target.UID, External: true}, false, nil
}
