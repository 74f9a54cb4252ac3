package engine

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// sourcesOf is a set of one prefix, or an empty one.
func sourcesOf(prefix string) *sources.Set {
	if prefix == "" {
		return sources.Of()
	}
	return sources.Of(netip.MustParsePrefix(prefix))
}

func limits(of map[stream.Key]string) AccessChanged {
	ev := AccessChanged{Sources: map[stream.Key]*sources.Set{}}
	for k, prefix := range of {
		ev.Sources[k] = sourcesOf(prefix)
	}
	return ev
}

// Who does not hear of a limit takes a stream for open, so nobody is told anything before the limits are known.
func TestNothingIsAnsweredBeforeTheLimitsAreKnown(t *testing.T) {
	n := newNSP(t, func(c *Config) { c.AccessPending = true })
	n.do(NamespaceSynced{Namespace: own}, TrenchConfigured{Trench: "t1"})
	a := target(x1, 1)
	n.register(a)
	cursor := n.s.topic(&n.out, x1.Of()).Follow()
	_, ok, _ := cursor.Next()
	require.False(t, ok)
	n.do(limits(map[stream.Key]string{x1: "10.0.0.0/8"}))
	b, ok, _ := cursor.Next()
	require.True(t, ok)
	require.True(t, b.Snapshot)
	require.Len(t, b.Changes, 2)
	n.is(a, Active, ReasonApplication)
}

// A limit is one change for the receivers of its conduit and for those of its trench, and none for others; what did not change, is
// none for anybody.
func TestLimitsWakeTheirConduitOnly(t *testing.T) {
	n := running(t)
	y := key("t1", "c2", "y")
	n.do(limits(map[stream.Key]string{x1: "10.0.0.0/8", y: ""}))
	mine, other := n.s.topic(&n.out, x1.Of()).Follow(), n.s.topic(&n.out, y.Of()).Follow()
	scope := n.s.topic(&n.out, scopeTopic(own, "t1")).Follow()
	_, _, _ = mine.Next()
	_, _, _ = other.Next()
	all, _, _ := scope.Next()
	require.Len(t, all.Changes, 2)

	n.do(limits(map[stream.Key]string{x1: "10.0.0.0/9", y: ""}))
	b, ok, _ := mine.Next()
	require.True(t, ok)
	require.Len(t, b.Changes, 1)
	require.Equal(t, []string{"10.0.0.0/9"}, b.Changes[0].Value.Access.Sources.Strings())
	_, ok, _ = other.Next()
	require.False(t, ok)
	b, ok, _ = scope.Next()
	require.True(t, ok)
	require.Len(t, b.Changes, 1)

	n.do(limits(map[stream.Key]string{y: ""}))
	b, ok, _ = mine.Next()
	require.True(t, ok)
	require.True(t, b.Changes[0].Gone)
	require.Equal(t, x1, b.Changes[0].Value.Access.Stream)
	require.Equal(t, []*Access{n.s.access.told[y].Access}, n.s.overview(&n.out).Limited)
	for _, c := range n.s.overview(&n.out).Conduits {
		require.Zero(t, c.Targets)
	}
}
