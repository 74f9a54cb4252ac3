package server

import (
	"context"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// What SVID and token together prove under each mode.
func TestProof(t *testing.T) {
	home := auth.Identity{
		SPIFFEID: spiffeid.RequireFromString("spiffe://example.org/ns/red/sa/web"),
		Account:  auth.ServiceAccount{Namespace: "red", Name: "web"},
	}
	other := auth.Identity{
		SPIFFEID: spiffeid.RequireFromString("spiffe://example.org/ns/red/sa/other"),
		Account:  auth.ServiceAccount{Namespace: "red", Name: "other"},
	}
	foreign := auth.Identity{SPIFFEID: spiffeid.RequireFromString("spiffe://elsewhere.org/ns/red/sa/web")}
	pod := auth.Pod{Namespace: "red", Name: "pod-1", UID: "uid-1"}
	for name, tt := range map[string]struct {
		mode  auth.Mode
		svid  auth.Identity
		token string
		why   auth.Reason
		pod   auth.Pod
	}{
		"token":                        {auth.ByToken, auth.Identity{}, "Bearer red/1", "", pod},
		"token, scheme in lower case":  {auth.ByToken, auth.Identity{}, "bearer red/1", "", pod},
		"token, none":                  {auth.ByToken, auth.Identity{}, "", auth.NoToken, auth.Pod{}},
		"token, an SVID only":          {auth.ByToken, home, "", auth.NoToken, auth.Pod{}},
		"token, another scheme":        {auth.ByToken, auth.Identity{}, "Basic red/1", auth.NoToken, auth.Pod{}},
		"token, forged":                {auth.ByToken, home, "Bearer forged", auth.BadToken, auth.Pod{}},
		"token, a foreign SVID beside": {auth.ByToken, foreign, "Bearer red/1", "", pod},
		"mtls":                         {auth.ByMTLS, home, "", "", auth.Pod{}},
		"mtls and token":               {auth.ByMTLS, home, "Bearer red/1", "", pod},
		"mtls, a forged token":         {auth.ByMTLS, home, "Bearer forged", auth.BadToken, auth.Pod{}},
		"mtls, a token of another":     {auth.ByMTLS, other, "Bearer red/1", auth.OtherIdentity, auth.Pod{}},
		"mtls, another trust domain":   {auth.ByMTLS, foreign, "", auth.OtherDomain, auth.Pod{}},
		"mtls, no certificate":         {auth.ByMTLS, auth.Identity{}, "", auth.NoIdentity, auth.Pod{}},
		"legacy, anybody":              {auth.Legacy, foreign, "", "", auth.Pod{}},
		"peer address":                 {auth.PeerAddress, auth.Identity{}, "", "", auth.Pod{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Server{cfg: Config{Auth: tt.mode, Tokens: auth.NewTokens(auth.TokensConfig{Verifier: &tokens{}})}}
			ctx := t.Context()
			if tt.token != "" {
				ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", tt.token))
			}
			c := auth.Caller{Mode: tt.mode, Identity: tt.svid}
			err := s.prove(ctx, &c)
			require.Equal(t, tt.why, refusedFor(err), "%v", err)
			require.Equal(t, tt.pod, c.Pod)
			require.Equal(t, tt.why == "", err == nil)
		})
	}
}

// Two tokens are none: it would be a matter of taste which one counts.
func TestTwoTokensAreNone(t *testing.T) {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", "Bearer a", "authorization", "Bearer b"))
	require.Empty(t, bearer(ctx))
}
