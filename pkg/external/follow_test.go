package external

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script reports each entry at its time.
type script []entry

type entry struct {
	at     time.Duration
	report Report
}

func (s script) Run(ctx context.Context, report func(Report)) {
	start := time.Now()
	for _, e := range s {
		select {
		case <-time.After(e.at - time.Since(start)):
			report(e.report)
		case <-ctx.Done():
			return
		}
	}
	<-ctx.Done()
}

func good(addrs ...string) Report { return Report{Endpoints: ready(addrs...)} }

func ready(addrs ...string) []Endpoint {
	var endpoints []Endpoint
	for _, a := range addrs {
		endpoints = append(endpoints, Endpoint{Addr: netip.MustParseAddr(a), Ready: true, Serving: true})
	}
	return endpoints
}

// seen is what was published, and when.
type seen struct {
	at       time.Duration
	addrs    string
	resolved bool
	reason   string
}

func follow(t *testing.T, cfg FollowConfig, length time.Duration) (states []seen) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		start := time.Now()
		Follow(ctx, cfg, func(s State) {
			var addrs []string
			for _, e := range s.Endpoints {
				addrs = append(addrs, e.Addr.String())
			}
			states = append(states, seen{time.Since(start), fmt.Sprint(addrs), s.Resolved, s.Reason})
		})
	})
	return states
}

func TestNameIsAwayForAWhile(t *testing.T) { // D11
	states := follow(t, FollowConfig{MaxStale: time.Hour, Source: script{
		{0, good("10.0.0.1", "10.0.0.2")},
		{time.Minute, Failed(ReasonNameNotFound, "gone")},
		{2 * time.Minute, Failed(ReasonNameNotFound, "gone")},
		{3 * time.Minute, good("10.0.0.3", "10.0.0.1")},
	}}, 2*time.Hour)
	require.Equal(t, []seen{
		{0, "[10.0.0.1 10.0.0.2]", true, ReasonResolved},
		{time.Minute, "[10.0.0.1 10.0.0.2]", false, ReasonNameNotFound},
		{3 * time.Minute, "[10.0.0.1 10.0.0.3]", true, ReasonResolved},
	}, states)
}

func TestHeldUntilMaxStale(t *testing.T) {
	failing := script{{0, good("10.0.0.1")}}
	for i := range 100 {
		failing = append(failing, entry{time.Duration(i+1) * time.Second, Failed(ReasonResolverFailed, "away")})
	}
	states := follow(t, FollowConfig{MaxStale: 10 * time.Second, Source: failing}, time.Hour)
	require.Equal(t, []seen{
		{0, "[10.0.0.1]", true, ReasonResolved},
		{time.Second, "[10.0.0.1]", false, ReasonResolverFailed},
	}, states[:2])
	// It counts from the first failure, and the many that follow do not prolong it.
	require.Equal(t, 11*time.Second, states[2].at.Truncate(time.Second))
	require.Equal(t, "[]", states[2].addrs)
}

func TestNothingIsHeldWhereNothingMay(t *testing.T) {
	states := follow(t, FollowConfig{Source: script{{0, good("10.0.0.1")}, {time.Second, Failed(ReasonNameNotFound, "gone")}}}, time.Minute)
	require.Equal(t, seen{time.Second, "[]", false, ReasonNameNotFound}, states[1])
	require.Len(t, states, 2)
}

func TestWhatAnotherProcessKnewIsHeld(t *testing.T) {
	last := ready("10.0.0.9")
	states := follow(t, FollowConfig{Last: last, MaxStale: time.Minute, Source: script{
		{10 * time.Second, Failed(ReasonClusterUnreachable, "away")},
		{20 * time.Second, good()},
	}}, time.Minute)
	require.Equal(t, []seen{ // nothing before the first report
		{10 * time.Second, "[10.0.0.9]", false, ReasonClusterUnreachable},
		{20 * time.Second, "[]", true, ReasonResolved}, // nothing is also an answer
	}, states)
}

func TestARestartProlongsNothing(t *testing.T) {
	var states []seen
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		Follow(ctx, FollowConfig{Last: ready("10.0.0.9"), MaxStale: time.Minute, Since: start.Add(-50 * time.Second),
			Source: script{{time.Second, Failed(ReasonClusterUnreachable, "away")}}}, func(s State) {
			states = append(states, seen{time.Since(start), fmt.Sprint(len(s.Endpoints)), s.Resolved, s.Reason})
		})
	})
	require.Equal(t, []seen{{time.Second, "1", false, ReasonClusterUnreachable}, {10 * time.Second, "0", false, ReasonClusterUnreachable}}, states)
}

func TestBadAddressesSpoilNothing(t *testing.T) { // P3
	for _, bad := range []string{"127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1",
		"ff02::1", "::ffff:10.0.0.1", "fe80::1%eth0"} {
		state := accept(ready("10.0.0.1", bad, "2001:db8::1"))
		require.Equal(t, ready("10.0.0.1", "2001:db8::1"), state.Endpoints)
		require.Equal(t, ReasonSomeIgnored, state.Reason)
		require.Contains(t, state.Message, bad)
	}
	require.Equal(t, ready("10.0.0.1"), accept([]Endpoint{{}, ready("10.0.0.1")[0]}).Endpoints)
}

func TestTooMany(t *testing.T) {
	var many []Endpoint
	addr := netip.MustParseAddr("10.0.0.1")
	for range 10_000 {
		many = append(many, Endpoint{Addr: addr, Ready: true})
		addr = addr.Next()
	}
	slices.Reverse(many)
	state := accept(many)
	require.Len(t, state.Endpoints, MaxEndpoints)
	require.Equal(t, "10.0.0.1", state.Endpoints[0].Addr.String())
	require.Contains(t, state.Message, "10000")
}

// TestAcceptModel compares with sets: whatever the order and however often, each usable address is there once, as ready as
// anybody said.
func TestAcceptModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reported := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Endpoint {
			last := rapid.ByteRange(0, 9).Draw(t, "addr")
			return Endpoint{
				Addr: netip.AddrFrom4([4]byte{10 * (last % 2), 0, 0, last}), Ready: rapid.Bool().Draw(t, "ready"),
				Serving: rapid.Bool().Draw(t, "serving"), Terminating: rapid.Bool().Draw(t, "terminating"),
				Identity: rapid.SampledFrom([]string{"", "a"}).Draw(t, "identity"),
			}
		})).Draw(t, "reported")
		want := map[netip.Addr]bool{}
		for _, e := range reported {
			if usable(e.Addr) {
				want[e.Addr] = want[e.Addr] || e.Ready
			}
		}
		got := map[netip.Addr]bool{}
		state := accept(slices.Clone(reported))
		require.Equal(t, state, accept(rapid.Permutation(reported).Draw(t, "another order")))
		for _, e := range state.Endpoints {
			got[e.Addr] = e.Ready
		}
		require.Equal(t, want, got)
		require.Len(t, state.Endpoints, len(want))
		require.True(t, slices.IsSortedFunc(state.Endpoints, func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) }))
	})
}
