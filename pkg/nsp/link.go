package nsp

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// LinkConfig says how a trench process reaches the namespace process, and how each proves itself to the other. Its fields are
// flags. The transport is that of the listener.
type LinkConfig struct {
	// NamespaceNSP is the address of the namespace process that has the registry; empty where this process has its own.
	NamespaceNSP string
	// LinkCA verifies the namespace process with TLS; empty means the system's. LinkCert and LinkKey are shown to it.
	LinkCA, LinkCert, LinkKey string
	// LinkID is who the namespace process must be with SPIFFE: a SPIFFE ID, or a ServiceAccount as namespace/name. Empty takes
	// anybody whom the trust bundles verify.
	LinkID string
	// LinkToken is a file with a token of this process's ServiceAccount; empty shows none.
	LinkToken string
}

// relaying tells whether the trench process has a namespace process behind it.
func (c *TrenchConfig) relaying() bool { return c.NamespaceNSP != "" }

func (c *TrenchConfig) validateLink() error {
	var errs []error
	complain := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if !c.relaying() {
		complain(c.LinkConfig == LinkConfig{}, "--namespace-nsp-* is set, but not --namespace-nsp: set that to the address of the namespace process")
		return errors.Join(errs...)
	}
	name := c.transportName()
	complain(c.trenchName() != "", "--namespace-nsp needs to know the trench: name the ConfigMap %s", config.MapName("<trench>"))
	complain(name == TLS || c.LinkCA+c.LinkCert+c.LinkKey == "",
		"--namespace-nsp-*-file for TLS is given, but --transport is %s: choose --transport=tls, or drop it", name)
	complain((c.LinkCert == "") == (c.LinkKey == ""),
		"--namespace-nsp-cert-file and --namespace-nsp-key-file belong together: set both or none")
	complain(name == SPIFFE || c.LinkID == "", "--namespace-nsp-id is set, but --transport is %s: choose --transport=spiffe, or drop it", name)
	if _, err := serverID(c.LinkID, spiffeid.TrustDomain{}); c.LinkID != "" && err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// credentials are those for dialling the namespace process.
func (c *LinkConfig) credentials(t transport, name string) (credentials.TransportCredentials, error) {
	switch name {
	case SPIFFE:
		return c.spiffe(t.spiffe), nil
	case TLS:
		creds, err := client.TLSFiles{CA: c.LinkCA, Cert: c.LinkCert, Key: c.LinkKey}.Credentials()
		if err != nil {
			return nil, fmt.Errorf("making the link to the namespace process: %w", err)
		}
		return creds, nil
	default:
		return insecure.NewCredentials(), nil
	}
}

// spiffe verifies at each handshake, so that a trust domain that came with a rotation counts.
func (c *LinkConfig) spiffe(source *auth.SPIFFE) credentials.TransportCredentials {
	if c.LinkID == "" {
		return source.Client()
	}
	is := func(actual spiffeid.ID, _ [][]*x509.Certificate) error {
		want, err := serverID(c.LinkID, source.ID().TrustDomain())
		if err == nil && actual != want {
			err = fmt.Errorf("the namespace process is %s, and not %s as --namespace-nsp-id says", actual, want)
		}
		return err
	}
	return credentials.NewTLS(tlsconfig.MTLSClientConfig(source, source, is))
}

// perRPC are the credentials that go with each call; nil where there are none.
func (c *LinkConfig) perRPC(transportName string, log *slog.Logger) credentials.PerRPCCredentials {
	if c.LinkToken == "" {
		return nil
	}
	if transportName == Plaintext {
		log.Warn("the token of this process is sent over plaintext: anybody on the way can use it; see --transport")
	}
	return client.NewTokenFile(c.LinkToken, transportName == Plaintext)
}

// serverID reads --namespace-nsp-id; a ServiceAccount is one of the own trust domain.
func serverID(s string, own spiffeid.TrustDomain) (spiffeid.ID, error) {
	if strings.Contains(s, "://") {
		id, err := spiffeid.FromString(s)
		if err != nil {
			return id, fmt.Errorf("--namespace-nsp-id is %q, which is no SPIFFE ID: %w", s, err)
		}
		return id, nil
	}
	namespace, account, ok := strings.Cut(s, "/")
	if !ok || namespace == "" || account == "" || strings.Contains(account, "/") {
		return spiffeid.ID{}, fmt.Errorf("--namespace-nsp-id is %q: write a SPIFFE ID, or a ServiceAccount as namespace/name", s)
	}
	if own.IsZero() {
		return spiffeid.ID{}, nil
	}
	id, err := spiffeid.FromSegments(own, "ns", namespace, "sa", account)
	if err != nil {
		return id, fmt.Errorf("--namespace-nsp-id is %q: %w", s, err)
	}
	return id, nil
}
