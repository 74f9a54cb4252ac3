package server

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// caller finds out who calls. What is not proven is no error here: some may be called by anybody.
func (s *Server) caller(ctx context.Context) auth.Caller {
	c := auth.Caller{Mode: s.cfg.Auth}
	if p, ok := peer.FromContext(ctx); ok {
		c.Addr, c.Identity = peerAddr(p), auth.IdentityOf(p.AuthInfo)
	}
	c.Unproven = s.prove(ctx, &c)
	if c.Account != (auth.ServiceAccount{}) && c.Unproven == nil {
		c.TrenchProcess = slices.Contains(s.cfg.TrenchProcesses, c.Account)
		c.Inspector = slices.Contains(s.cfg.Inspectors, c.Account)
	}
	return c
}

// prove takes in what a token or a certificate says, and says what is missing for the mode.
func (s *Server) prove(ctx context.Context, c *auth.Caller) error {
	raw := bearer(ctx)
	if raw != "" && s.cfg.Tokens != nil {
		token, err := s.cfg.Tokens.Check(ctx, c.Addr, raw)
		if err != nil {
			return err
		}
		if c.Account != (auth.ServiceAccount{}) && c.Account != token.Account {
			return auth.Unproven(auth.OtherIdentity, "the token is of %s, the SVID of %s", token.Account, c.Account)
		}
		c.Account, c.Pod, c.Expires = token.Account, token.Pod, token.Expires
	}
	if err := s.proveTarget(c); err != nil {
		return err
	}
	return enough(c)
}

// enough says what is missing for the mode.
func enough(c *auth.Caller) error {
	accounted := c.Account != (auth.ServiceAccount{}) || c.Target.UID != ""
	switch {
	case c.Mode == auth.ByToken && c.Expires.IsZero():
		return auth.Unproven(auth.NoToken, "a ServiceAccount token of audience %s is needed, as authorization: Bearer", auth.Audience)
	case c.Mode != auth.ByMTLS || accounted:
		return nil
	case len(c.Certificates) > 0:
		return auth.Unproven(auth.NoIdentity, "the certificate of %s has no SPIFFE ID, and is not that of an ExternalTarget", c.Identity)
	case c.SPIFFEID.IsZero():
		return auth.Unproven(auth.NoIdentity, "a client certificate with a SPIFFE ID is needed")
	}
	return auth.Deny(auth.OtherDomain, "%s is no spiffe://DOMAIN/ns/NAMESPACE/sa/NAME of this NSP's own trust domain, "+
		"nor the spec.identity of an ExternalTarget in a namespace that the NSP watches", c.SPIFFEID)
}

// proveTarget finds out whether the caller is an ExternalTarget.
func (s *Server) proveTarget(c *auth.Caller) (err error) {
	if c.Mode != auth.ByMTLS || s.cfg.ExternalTargets == nil {
		return nil
	}
	if c.Target, err = s.cfg.ExternalTargets.Find(c.Identity); err != nil || c.Target.UID == "" {
		return err
	}
	if c.Expires = c.Identity.Expires; !time.Now().Before(c.Expires) {
		return auth.Unproven(auth.ExpiredCertificate, "the certificate has expired; connect again with the next one")
	}
	return nil
}

// sessionHeader is which run of its sidecar a caller is of; see auth.Sessions.
const sessionHeader = "meridio-session"

// sessionOf is empty where the caller does not say.
func sessionOf(ctx context.Context) (string, error) {
	session := strings.Join(metadata.ValueFromIncomingContext(ctx, sessionHeader), ",")
	if len(session) > maxName {
		return "", invalid("the header %s has more than %d characters", sessionHeader, maxName)
	}
	return session, nil
}

// speaking has a call of an ExternalTarget end where a newer sidecar of it comes meanwhile. The error is a refusal: there is one. Other
// callers need no turn.
func (s *Server) speaking(ctx context.Context) (context.Context, func(), error) {
	c := auth.From(ctx)
	if c.Target.UID == "" {
		return ctx, func() {}, nil
	}
	session, err := sessionOf(ctx)
	if err != nil {
		return ctx, nil, err
	}
	ctx, end := context.WithCancelCause(ctx)
	done, err := s.sessions.Call(c.Target, session, end)
	if err != nil {
		end(nil)
		return ctx, nil, err
	}
	return ctx, func() { done(); end(nil) }, nil
}

// bearer is the token that came with the call, empty where none did.
func bearer(ctx context.Context) string {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func peerAddr(p *peer.Peer) netip.Addr {
	tcp, ok := p.Addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}
