package auth_test

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"maps"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

var machinesCA = auth.ConfigMap{Namespace: "apps", Name: "machines"}

func plain(t *testing.T, by *spiffe.Authority, name string, dns []string, edit func(*x509.Certificate)) tls.Certificate {
	c, err := by.Plain(name, dns, edit)
	require.NoError(t, err)
	return c
}

func showing(c tls.Certificate) auth.Identity {
	return auth.Identity{Certificates: []*x509.Certificate{c.Leaf}}
}

func subject(s string) auth.TargetIdentity {
	return auth.TargetIdentity{Subject: s, ConfigMap: machinesCA.Name, Key: "ca.crt"}
}

// machinesOf are vm-1 of common name "vm-1" and vm-2 of a DNS name, whose authority is ca, and what is wanted for that.
func machinesOf(t *testing.T, ca *spiffe.Authority) (targets *auth.Targets, wanted *map[auth.ConfigMap]bool, two auth.Target) {
	wanted = &map[auth.ConfigMap]bool{}
	targets = auth.NewTargets(auth.TargetsConfig{
		Log: slog.New(slog.DiscardHandler), Want: func(c map[auth.ConfigMap]bool) { *wanted = maps.Clone(c) },
	})
	two = auth.Target{Namespace: "apps", Name: "vm-2", UID: "u2"}
	targets.Replace("apps", map[auth.Target]auth.TargetIdentity{vm: subject("vm-1"), two: subject("two.example.org")})
	if ca != nil {
		targets.SetAuthority(machinesCA, map[string]string{"ca.crt": string(ca.PEM())})
	}
	return targets, wanted, two
}

// A certificate proves what its own authority was named for, under exactly that subject.
func TestSubjectOfAnAuthority(t *testing.T) {
	ca, other := authority(t, "a.example"), authority(t, "b.example")
	targets, wanted, two := machinesOf(t, ca)
	require.Equal(t, map[auth.ConfigMap]bool{machinesCA: true}, *wanted)
	for name, tt := range map[string]struct {
		shows tls.Certificate
		is    auth.Target
	}{
		"a common name":      {plain(t, ca, "vm-1", nil, nil), vm},
		"a DNS name":         {plain(t, ca, "", []string{"x", "two.example.org"}, nil), two},
		"another subject":    {plain(t, ca, "vm-3", nil, nil), auth.Target{}},
		"other letters":      {plain(t, ca, "VM-1", nil, nil), auth.Target{}},
		"a wildcard":         {plain(t, ca, "", []string{"*.example.org"}, nil), auth.Target{}},
		"another authority":  {plain(t, other, "vm-1", nil, nil), auth.Target{}},
		"one that expired":   {plain(t, ca, "vm-1", nil, func(x *x509.Certificate) { x.NotAfter = time.Now().Add(-time.Minute) }), auth.Target{}},
		"one of a server":    {plain(t, ca, "vm-1", nil, func(x *x509.Certificate) { x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), auth.Target{}},
		"nobody's certicate": {plain(t, other, "", nil, nil), auth.Target{}},
	} {
		found, err := targets.Find(showing(tt.shows))
		require.NoError(t, err, name)
		require.Equal(t, tt.is, found, name)
		require.Equal(t, tt.is.UID != "", targets.Accept(showing(tt.shows).Certificates) == nil, name)
	}
	_, err := targets.Find(showing(plain(t, ca, "vm-1", []string{"two.example.org"}, nil)))
	require.ErrorContains(t, err, "both claim")
	require.Error(t, targets.Accept(nil))
}

// Two ExternalTargets that name one authority and subject are both refused, also where the authority is written down twice.
func TestSubjectThatTwoClaim(t *testing.T) {
	ca := authority(t, "a.example")
	targets, wanted, _ := machinesOf(t, ca)
	thief := auth.Target{Namespace: "evil", Name: "vm-1", UID: "u9"}
	targets.Replace("evil", map[auth.Target]auth.TargetIdentity{thief: subject("vm-1")})
	require.Len(t, *wanted, 2)
	shows := showing(plain(t, ca, "vm-1", nil, nil))
	found, err := targets.Find(shows)
	require.NoError(t, err)
	require.Equal(t, vm, found, "the same subject of another authority is somebody else")
	targets.SetAuthority(auth.ConfigMap{Namespace: "evil", Name: "machines"}, map[string]string{"ca.crt": string(ca.PEM()) + "\n"})
	_, err = targets.Find(shows)
	require.ErrorIs(t, err, auth.ErrDenied)
	require.ErrorContains(t, err, `ExternalTargets apps/vm-1 and evil/vm-1 both claim the identity ["vm-1"]`)
	require.Equal(t, 1, targets.Shared())
	targets.Replace("evil", nil)
	require.Len(t, *wanted, 1)
	_, err = targets.Find(shows)
	require.NoError(t, err)
}

// The authority changes while a machine is connected.
func TestAuthorityChanges(t *testing.T) {
	ca, next := authority(t, "a.example"), authority(t, "b.example")
	var saved []byte
	targets, _, _ := machinesOf(t, nil)
	old, anew := showing(plain(t, ca, "vm-1", nil, nil)), showing(plain(t, next, "vm-1", nil, nil))
	is := func(i auth.Identity, want auth.Target) {
		t.Helper()
		found, err := targets.Find(i)
		require.NoError(t, err)
		require.Equal(t, want, found)
	}
	is(old, auth.Target{})
	both := string(ca.PEM()) + string(next.PEM())
	for name, tt := range map[string]struct {
		data  map[string]string
		ended bool
	}{
		"another beside":  {map[string]string{"ca.crt": both}, false},
		"another instead": {map[string]string{"ca.crt": string(next.PEM())}, true},
		"nonsense":        {map[string]string{"ca.crt": "x"}, true},
		"another key":     {map[string]string{"ca": string(ca.PEM())}, true},
		"nothing":         {nil, true},
	} {
		targets.SetAuthority(machinesCA, map[string]string{"ca.crt": string(ca.PEM())})
		is(old, vm)
		is(anew, auth.Target{})
		var ended error
		release := targets.Hold(old, vm, func(err error) { ended = err })
		targets.SetAuthority(machinesCA, tt.data)
		require.Equal(t, tt.ended, ended != nil, name)
		release()
	}
	first := auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.DiscardHandler), Save: func(data []byte) { saved = data }})
	first.Replace("apps", map[auth.Target]auth.TargetIdentity{vm: subject("vm-1")})
	first.SetAuthority(machinesCA, map[string]string{"ca.crt": string(ca.PEM())})
	targets = auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, targets.Restore(saved, []string{"apps"}))
	is(old, vm)
}

// A listener lets in SVIDs that its bundles verify and machines that their authorities vouch for. No authority of a machine vouches for
// a SPIFFE ID.
func TestMachinesAreLetIn(t *testing.T) {
	w := newWorld(t)
	w.issue(time.Hour)
	ca := authority(t, "example.org") // as anybody can call his own
	targets, _, _ := machinesOf(t, ca)
	s := serve(t, w.open(w.config()).Server(targets))
	without := serve(t, w.open(w.config()).Server(nil))
	call := func(s *server, c tls.Certificate) error {
		_, err := s.call(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{c},
		}))
		return err
	}
	require.NoError(t, call(s, plain(t, ca, "vm-1", nil, nil)))
	shown := s.caller.Load()
	require.True(t, shown.SPIFFEID.IsZero())
	found, err := targets.Find(*shown)
	require.NoError(t, err)
	require.Equal(t, vm, found)
	_, err = s.call(as(svid(t, w.ca, "/ns/red/sa/tapa", time.Hour), w.ca.Bundle()))
	require.NoError(t, err)
	require.Empty(t, s.caller.Load().Certificates)

	forged := func(x *x509.Certificate) {
		x.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/ns/red/sa/nsp"}}
	}
	for name, err := range map[string]error{
		"a SPIFFE ID by the authority of a machine": call(s, plain(t, ca, "vm-1", nil, forged)),
		"a subject by the authority of SVIDs":       call(s, plain(t, w.ca, "vm-1", nil, nil)),
		"a stranger":                                call(s, plain(t, ca, "vm-9", nil, nil)),
		"where no machine is let in":                call(without, plain(t, ca, "vm-1", nil, nil)),
		"no certificate":                            call(s, tls.Certificate{}),
	} {
		require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", name, err)
	}
	require.Positive(t, w.log.count("no ExternalTarget has that subject"))
}
