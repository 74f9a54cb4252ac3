package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"google.golang.org/grpc/credentials"
)

// ServiceAccount is one of Kubernetes.
type ServiceAccount struct{ Namespace, Name string }

// String is namespace/name, and empty for none.
func (a ServiceAccount) String() string {
	if a == (ServiceAccount{}) {
		return ""
	}
	return a.Namespace + "/" + a.Name
}

// accountOf reads the form in which SPIRE names a ServiceAccount: /ns/NAMESPACE/sa/NAME.
func accountOf(id spiffeid.ID) ServiceAccount {
	p := strings.Split(id.Path(), "/")
	if len(p) != 5 || p[1] != "ns" || p[3] != "sa" {
		return ServiceAccount{}
	}
	return ServiceAccount{Namespace: p[2], Name: p[4]}
}

// Identity is what a connection proves about its client.
type Identity struct {
	// SPIFFEID is zero where the transport proves none.
	SPIFFEID spiffeid.ID
	// Account is set where the SPIFFE ID names a ServiceAccount of this process's own trust domain: in another one the same
	// path means somebody else.
	Account ServiceAccount
	// Certificates are what the client showed, its own first, where that names no SPIFFE ID: who vouches for it, Targets know.
	Certificates []*x509.Certificate
	// Expires is when the client's certificate does; zero where it showed none.
	Expires time.Time
}

// String is the SPIFFE ID, or else what the certificate names.
func (i Identity) String() string {
	if len(i.Certificates) > 0 {
		return fmt.Sprintf("%.300q", subjects(i.Certificates[0]))
	}
	return i.SPIFFEID.String()
}

// IdentityOf is what the connection proves.
func IdentityOf(info credentials.AuthInfo) Identity {
	if i, ok := info.(identified); ok {
		return i.identity
	}
	return Identity{}
}

// identified implements credentials.AuthInfo.
type identified struct {
	credentials.TLSInfo
	identity Identity
}

// Server are the credentials of a server: mTLS, in which any client with an SVID that the trust bundles verify is let in, as
// in Meridio 1.x, and one without a SPIFFE ID that is one of the targets; nil lets in none. New connections use what the workload API
// said last.
func (s *SPIFFE) Server(targets *Targets) credentials.TransportCredentials {
	cfg := tlsconfig.MTLSServerConfig(s, s, tlsconfig.AuthorizeAny())
	cfg.VerifyPeerCertificate = AcceptTargets(targets, cfg.VerifyPeerCertificate)
	// A resumed session would not be verified again, though the bundle or the client's SVID may have gone since.
	cfg.SessionTicketsDisabled = true
	return &serverCredentials{TransportCredentials: credentials.NewTLS(cfg), spiffe: s}
}

// AcceptTargets is a verification of client certificates that leaves those without a SPIFFE ID to the targets, and all others to
// another one: an authority that vouches for a target does not vouch for a SPIFFE ID. nil leaves all to that.
func AcceptTargets(targets *Targets, others func([][]byte, [][]*x509.Certificate) error) func([][]byte, [][]*x509.Certificate) error {
	if targets == nil {
		return others
	}
	return func(raw [][]byte, verified [][]*x509.Certificate) error {
		chain, err := x509.ParseCertificates(slices.Concat(raw...))
		if err != nil || len(chain) == 0 || len(chain[0].URIs) > 0 {
			return others(raw, verified)
		}
		return targets.Accept(chain)
	}
}

// Client are the credentials for dialling a server that has such too, as Meridio 1.x does: any verified SVID will do.
func (s *SPIFFE) Client() credentials.TransportCredentials {
	return credentials.NewTLS(tlsconfig.MTLSClientConfig(s, s, tlsconfig.AuthorizeAny()))
}

// serverCredentials adds who the client is, and says who was refused.
type serverCredentials struct {
	credentials.TransportCredentials
	spiffe *SPIFFE
}

// Clone implements credentials.TransportCredentials.
func (c *serverCredentials) Clone() credentials.TransportCredentials {
	return &serverCredentials{TransportCredentials: c.TransportCredentials.Clone(), spiffe: c.spiffe}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		c.spiffe.refuse(raw.RemoteAddr(), err)
		return nil, nil, err //nolint:wrapcheck // gRPC compares it
	}
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok {
		return conn, info, nil
	}
	identity, err := identify(tlsInfo.State, c.spiffe.ID().TrustDomain())
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, identified{TLSInfo: tlsInfo, identity: identity}, nil
}

// identify reads the SPIFFE ID of a client that has been verified; own is this process's trust domain.
func identify(st tls.ConnectionState, own spiffeid.TrustDomain) (Identity, error) {
	switch {
	case len(st.PeerCertificates) == 0:
		return Identity{}, errors.New("the client has no SPIFFE ID")
	case len(st.PeerCertificates[0].URIs) == 0:
		return Identity{Certificates: st.PeerCertificates, Expires: st.PeerCertificates[0].NotAfter}, nil
	}
	id, err := spiffeid.FromURI(st.PeerCertificates[0].URIs[0])
	if err != nil {
		return Identity{}, fmt.Errorf("reading the SPIFFE ID of the client: %w", err)
	}
	identity := Identity{SPIFFEID: id, Expires: st.PeerCertificates[0].NotAfter}
	if id.MemberOf(own) {
		identity.Account = accountOf(id)
	}
	return identity, nil
}

// WithIdentity adds who the client is to server credentials that verify certificates by a CA; own is the trust domain that the
// CA is believed for. A client without a SPIFFE ID proves nothing by that and is let in.
func WithIdentity(c credentials.TransportCredentials, own spiffeid.TrustDomain) credentials.TransportCredentials {
	return identifying{c, own}
}

// identifying reads SPIFFE IDs from certificates that something else has verified.
type identifying struct {
	credentials.TransportCredentials
	own spiffeid.TrustDomain
}

// Clone implements credentials.TransportCredentials.
func (c identifying) Clone() credentials.TransportCredentials {
	return identifying{c.TransportCredentials.Clone(), c.own}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c identifying) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	tlsInfo, ok := info.(credentials.TLSInfo)
	if err != nil || !ok {
		return conn, info, err //nolint:wrapcheck // gRPC compares it
	}
	if identity, err := identify(tlsInfo.State, c.own); err == nil {
		info = identified{TLSInfo: tlsInfo, identity: identity}
	}
	return conn, info, nil
}

// refuse counts a client that was refused, and logs some of many. One that went before it said anything, as a TCP probe does,
// was not refused.
func (s *SPIFFE) refuse(addr net.Addr, err error) {
	if errors.Is(err, io.EOF) {
		return
	}
	if s.cfg.Refused != nil {
		s.cfg.Refused()
	}
	s.refused.Do(func() { s.cfg.Log.Info("a client was refused", "peer", addr.String(), "error", err) })
}
