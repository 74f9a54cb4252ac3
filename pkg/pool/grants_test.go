package pool

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// What a grant permits is no more than it says, in each of its parts, whatever other grants there are.
func TestGrantsPermitWhatTheySay(t *testing.T) {
	in := func(trench, conduit, name string) stream.Key {
		return stream.Key{Namespace: own, Trench: trench, Conduit: conduit, Name: name}
	}
	all := []Grant{
		{Namespace: "pods", Trench: "t1"},
		{Namespace: "conduit", Trench: "t1", Conduit: "c1"},
		{Namespace: "stream", Trench: "t1", Conduit: "c1", Stream: "x1"},
		{Namespace: "anyone", Trench: "t1", Accounts: []string{Any}},
		{Namespace: "accounts", Trench: "t1", Accounts: []string{"web", "db"}},
		{Namespace: "accounts", Trench: "t1", Accounts: []string{"app", "web"}},
		{Namespace: "externals", Trench: "t1", Externals: []string{"vm", "db"}},
		{Namespace: "externals", Trench: "t1", Externals: []string{"app", "vm"}},
		{Namespace: "all", Trench: "t1", Externals: []string{Any}},
		{Namespace: "nameless", Trench: "t1", Accounts: []string{""}},
	}
	everything := func(string) bool { return true }
	nothing := func(string) bool { return false }
	only := func(names ...string) func(string) bool {
		return func(n string) bool { return slices.Contains(names, n) }
	}
	for range 2 {
		g := NewGrants(all)
		for name, tc := range map[string]struct {
			namespace         string
			key               stream.Key
			granted           bool
			account, external func(string) bool
		}{
			"all pods of a namespace, and nothing else": {"pods", in("t1", "c2", "x2"), true, everything, nothing},
			"another trench":                      {"pods", in("t2", "c1", "x1"), false, nothing, nothing},
			"any trench, where none is asked for": {"pods", in("", "", ""), true, everything, nothing},
			"another namespace":                   {"zoo", in("t1", "c1", "x1"), false, nothing, nothing},
			"the conduit":                         {"conduit", in("t1", "c1", "x2"), true, everything, nothing},
			"another conduit":                     {"conduit", in("t1", "c2", "x1"), false, nothing, nothing},
			"some conduit":                        {"conduit", in("t1", "", ""), true, everything, nothing},
			"the stream":                          {"stream", in("t1", "c1", "x1"), true, everything, nothing},
			"another stream":                      {"stream", in("t1", "c1", "x2"), false, nothing, nothing},
			"a stream of that name elsewhere":     {"stream", in("t1", "c2", "x1"), false, nothing, nothing},
			"any account":                         {"anyone", in("t1", "c1", "x1"), true, everything, nothing},
			"the accounts of all grants":          {"accounts", in("t1", "c1", "x1"), true, only("web", "db", "app"), nothing},
			"the targets of all grants":           {"externals", in("t1", "c1", "x1"), true, nothing, only("vm", "db", "app")},
			"any target":                          {"all", in("t1", "c1", "x1"), true, nothing, everything},
			"an account without a name is none":   {"nameless", in("t1", "c1", "x1"), true, nothing, nothing},
		} {
			t.Run(name, func(t *testing.T) {
				p := g.Permission(tc.namespace, tc.key)
				require.Equal(t, tc.granted, p.Granted())
				for _, who := range []string{"web", "db", "app", "vm", "zebra", ""} {
					require.Equal(t, tc.account(who), p.Account(who), "account %q", who)
					require.Equal(t, tc.external(who), p.Target(who), "target %q", who)
				}
			})
		}
		require.Len(t, g.All(), len(all))
		slices.Reverse(all) // the order of grants does not matter
		require.Equal(t, g.All(), NewGrants(all).All())
	}
	require.Empty(t, (*Grants)(nil).All())
	require.Empty(t, (*Grants)(nil).Namespaces())
}

// The condition says who is not permitted, and what the grant is for.
func TestConditionNamesWhoIsNotPermitted(t *testing.T) {
	s := service("s", "t1", "x1")
	s.Namespace, s.Labels[LabelNamespace] = "app", own
	x := slice4("s", "x", 1, pod("u1", "10.0.0.1", true), pod("u2", "10.0.0.2", true))
	x.Namespace, x.OwnerUID = "app", s.UID
	for i := range x.Endpoints {
		x.Endpoints[i].Target.Namespace = "app"
	}
	tb := table(s)
	tb.SetGrants(NewGrants([]Grant{{Namespace: "app", Trench: "t1", Accounts: []string{"a", "b", "c", "d", "e", "f", "web"}}}))
	tb.SetAccount(MemberKey{Namespace: "app", UID: "u2"}, "db")
	put(tb, x)
	p := tb.Pool(s.Ref)
	require.True(t, p.Accepted)
	require.Equal(t, ReasonMembersNotPermitted, p.Reason)
	require.Contains(t, p.Message,
		"members are not permitted, for the grant is for pods that run as a, b, c, d, e, ...: pod-u1 (not proven), pod-u2 (runs as db)")
	tb.SetGrants(NewGrants([]Grant{{Namespace: "app", Trench: "t1", Externals: []string{"vm"}}}))
	tb.Flush()
	require.Contains(t, tb.Pool(s.Ref).Message, "members are not permitted, for the grant is for external targets only: pod-u1")
}
