package nsp

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/kube"
	"github.com/nordix/meridio-nsp/pkg/server"
)

// How tokens are verified.
const (
	ByReview  = "review"
	ByOwnKeys = "local"
)

// TokenVerifications are all ways, for messages and completion.
var TokenVerifications = []string{ByReview, ByOwnKeys}

// AuthConfig says who is believed, and how much anybody may take. Its fields are flags of both processes.
type AuthConfig struct {
	// Authorisation is one of auth.Modes; empty means what fits the transport.
	Authorisation string
	// TokenVerification is one of TokenVerifications; empty means ByReview.
	TokenVerification string
	// TokensOverPlaintext lets callers show tokens where anybody on the way can take them.
	TokensOverPlaintext bool
	// TrustDomain is that of client certificates under --transport=tls.
	TrustDomain string
	// LoadBalancerAccounts may watch feeds: namespace/name, or a name in the NSP's namespace, each with =trench or
	// =trench/conduit where it is for one only. InspectorAccounts may look into everything.
	LoadBalancerAccounts, InspectorAccounts []string
	// LegacyRegistration is one of server.LegacyRegistrations; empty means LegacyAllow.
	LegacyRegistration string
	Failures           auth.FailureLimits
	Limits             server.Limits
	// MaxRegistrationsPerPod and MaxRegistrationsPerPeer bound what one caller registers; 0 is no limit.
	MaxRegistrationsPerPod, MaxRegistrationsPerPeer int
}

// namespaceMode is what a namespace process takes where nothing is chosen, trenchMode what a trench process does: the strictest
// that needs nothing which the transport does not bring along, and for old clients what Meridio 1.x has.
func (c *ProcessConfig) namespaceMode() auth.Mode {
	switch {
	case c.Authorisation != "":
		return auth.Mode(c.Authorisation)
	case c.transportName() == SPIFFE:
		return auth.ByMTLS
	case c.transportName() == TLS:
		return auth.ByToken
	}
	return auth.PeerAddress
}

func (c *ProcessConfig) trenchMode() auth.Mode {
	switch {
	case c.Authorisation != "":
		return auth.Mode(c.Authorisation)
	case c.verifiesClients():
		return auth.Legacy
	}
	return auth.PeerAddress
}

// verifiesClients tells whether the transport lets in nobody without a certificate.
func (c *TransportConfig) verifiesClients() bool {
	return c.transportName() == SPIFFE || c.transportName() == TLS && c.TLSClientCA != ""
}

// validateAuth says, in sentences, all that has to be changed for a mode.
func (c *ProcessConfig) validateAuth(mode auth.Mode) error {
	_, unknown := auth.ParseMode(string(mode))
	if unknown != nil {
		return fmt.Errorf("--authorisation: %w", unknown)
	}
	_, errLB := parseLoadBalancers(c.LoadBalancerAccounts, c.Namespace)
	_, errInspectors := parseAccounts("--inspector-accounts", c.InspectorAccounts, c.Namespace)
	return errors.Join(c.validateProof(mode), c.validateAuthValues(), errLB, errInspectors)
}

// validateProof refuses what can prove nothing over the transport.
func (c *ProcessConfig) validateProof(mode auth.Mode) error {
	name := c.transportName()
	switch {
	case mode == auth.ByToken && name == Plaintext && !c.TokensOverPlaintext:
		return errors.New("--authorisation=token over --transport=plaintext shows tokens to anybody on the way: " +
			"choose another transport, or set --tokens-over-plaintext")
	case (mode == auth.ByMTLS || mode == auth.Legacy) && !c.verifiesClients():
		return fmt.Errorf("--authorisation=%s needs client certificates: choose --transport=spiffe, or set --tls-client-ca-file", mode)
	case mode == auth.ByMTLS && name == TLS && c.TrustDomain == "":
		return errors.New("--authorisation=mtls over --transport=tls needs --trust-domain: set it to that of the clients' SPIFFE IDs")
	case server.LegacyRegistration(c.LegacyRegistration) == server.LegacyOwnNamespace && name != SPIFFE && c.TrustDomain == "":
		return fmt.Errorf("--legacy-registration is %s, but --transport is %s, which tells no namespaces: choose --transport=%s",
			c.LegacyRegistration, name, SPIFFE)
	}
	return nil
}

func (c *ProcessConfig) validateAuthValues() error {
	var errs []error
	if v := c.TokenVerification; v != "" && !slices.Contains(TokenVerifications, v) {
		errs = append(errs, fmt.Errorf("--token-verification is %q: choose one of %s", v, strings.Join(TokenVerifications, ", ")))
	}
	if v := server.LegacyRegistration(c.LegacyRegistration); v != "" && !slices.Contains(server.LegacyRegistrations, v) {
		errs = append(errs, fmt.Errorf("--legacy-registration is %q: choose one of %v", v, server.LegacyRegistrations))
	}
	if c.TrustDomain != "" {
		if _, err := spiffeid.TrustDomainFromString(c.TrustDomain); err != nil {
			errs = append(errs, fmt.Errorf("--trust-domain is %q: write it as example.org: %w", c.TrustDomain, err))
		}
	}
	l := c.Limits
	if min(l.Watches, l.WatchesPerPod, l.WatchesPerPeer, l.Connections, l.ConnectionsPerPeer, l.RequestBytes,
		c.MaxRegistrationsPerPod, c.MaxRegistrationsPerPeer) < 0 || min(c.Failures.PerPeer, c.Failures.Total) < 0 {
		errs = append(errs, errors.New("a limit is below 0: 0 is no limit"))
	}
	return errors.Join(errs...)
}

// parseAccounts reads ServiceAccounts as namespace/name, or as a name in the NSP's own namespace.
func parseAccounts(flag string, list []string, own string) ([]auth.ServiceAccount, error) {
	var accounts []auth.ServiceAccount
	var errs []error
	for _, s := range list {
		ns, name, ok := strings.Cut(s, "/")
		if !ok {
			ns, name = own, s
		}
		if ns == "" || name == "" || strings.Contains(name, "/") {
			errs = append(errs, fmt.Errorf("%s has %q: write a ServiceAccount as namespace/name", flag, s))
			continue
		}
		accounts = append(accounts, auth.ServiceAccount{Namespace: ns, Name: name})
	}
	return accounts, errors.Join(errs...)
}

// parseLoadBalancers reads accounts with what they may watch.
func parseLoadBalancers(list []string, own string) ([]server.LoadBalancer, error) {
	const flag = "--load-balancer-accounts"
	var all []server.LoadBalancer
	var errs []error
	for _, s := range list {
		account, scope, scoped := strings.Cut(s, "=")
		accounts, err := parseAccounts(flag, []string{account}, own)
		trench, conduit, ofConduit := strings.Cut(scope, "/")
		switch {
		case err != nil:
			errs = append(errs, err)
		case scoped && trench == "" || ofConduit && conduit == "" || strings.Contains(conduit, "/"):
			errs = append(errs, fmt.Errorf("%s has %q: write what the account may watch as =trench or =trench/conduit", flag, s))
		default:
			all = append(all, server.LoadBalancer{Account: accounts[0], Trench: trench, Conduit: conduit})
		}
	}
	return all, errors.Join(errs...)
}

// tokenKeys is the document that keeps the cluster's public keys for the next start.
const tokenKeys = "token-keys"

// openTokens makes what verifies tokens, where the mode looks at them. Keys are kept by save, where that is set.
func (p *process) openTokens(mode auth.Mode, save func(name string, data []byte)) {
	if mode != auth.ByToken && mode != auth.ByMTLS {
		return
	}
	var verifier auth.Verifier = kube.Reviews{Client: p.client, Audience: auth.Audience}
	if p.common.TokenVerification == ByOwnKeys {
		cfg := auth.LocalConfig{
			Audience: auth.Audience, Fetch: kube.Keys(p.client), Lives: kube.Lives(p.client), Departed: &p.departed, Log: p.log,
			Save: func(k auth.Keys) {
				if data, err := json.Marshal(k); err == nil {
					save(tokenKeys, data)
				}
			},
		}
		var kept auth.Keys
		if json.Unmarshal(p.saved.Documents[tokenKeys], &kept) == nil && kept.Issuer != "" {
			cfg.First = &kept
		}
		verifier = auth.NewLocal(cfg)
	}
	p.tokens = auth.NewTokens(auth.TokensConfig{Verifier: verifier, Departed: &p.departed, Failures: p.common.Failures, Log: p.log})
}

// podListed is engine.Config.Listed.
func (p *process) podListed(uid string, listed bool) {
	p.departed.Listed(uid, listed)
	if p.tokens != nil && !listed {
		p.tokens.Forget(uid)
	}
}

// authorise completes the configuration of the server; its mode is set.
func (p *process) authorise(cfg *server.Config) error {
	var errLB, errInspectors error
	cfg.LoadBalancers, errLB = parseLoadBalancers(p.common.LoadBalancerAccounts, p.common.Namespace)
	cfg.Inspectors, errInspectors = parseAccounts("--inspector-accounts", p.common.InspectorAccounts, p.common.Namespace)
	cfg.LegacyRegistration = server.LegacyRegistration(p.common.LegacyRegistration)
	cfg.Tokens, cfg.Limits = p.tokens, p.common.Limits
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nsp_refused_total", Help: "Calls and connections that were refused, by reason.",
	}, []string{"reason"})
	for _, why := range auth.Reasons {
		refused.WithLabelValues(string(why))
	}
	cfg.Refused = func(why auth.Reason) { refused.WithLabelValues(string(why)).Inc() }
	legacy := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "nsp_legacy_registrations_total", Help: "Calls of Register and Unregister that were let through though their caller proves no pod.",
	})
	cfg.LegacyRegistered = legacy.Inc
	p.metrics.registry.MustRegister(refused, legacy)
	switch cfg.Auth {
	case auth.None:
		p.log.Warn("authorisation is off: every caller is believed; this is for development only")
	case auth.ByToken:
		if p.common.transportName() == Plaintext {
			p.log.Warn("tokens are shown over plaintext: anybody on the way can use them; see --tokens-over-plaintext")
		}
	}
	return errors.Join(errLB, errInspectors)
}
