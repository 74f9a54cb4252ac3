package client

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

func only(stream string, prefixes ...string) *pb.StreamSources {
	return &pb.StreamSources{Stream: &pb.Stream{Name: stream}, Prefixes: prefixes}
}

func all(stream string) *pb.StreamSources {
	return &pb.StreamSources{Stream: &pb.Stream{Name: stream}, Unlimited: true}
}

func with(m *pb.TargetFeedWatchResponse, sources ...*pb.StreamSources) *pb.TargetFeedWatchResponse {
	m.Sources = sources
	return m
}

func told(sources []*pb.StreamSources) (out []string) {
	for _, s := range sources {
		out = append(out, fmt.Sprintf("%s%v%v", s.GetStream().GetName(), s.GetPrefixes(), s.GetUnlimited()))
	}
	return out
}

// What limits the sources of streams is part of the commits: told when it changes, found again after a resume, and after a snapshot of
// another run only as far as it differs.
func TestSourcesAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		feed, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, with(snapshot(nil, set(1, target("s1", 1, "10.0.0.1/32"))), only("s1", "10.0.0.0/8")))
		quiet(t, updates)
		require.Empty(t, feed.Sources())
		play(t, c, with(snapshot(version("E", 1)), only("s2")))
		u := next(t, updates)
		require.Equal(t, []string{"s1[10.0.0.0/8]false", "s2[]false"}, told(u.Sources))
		require.Len(t, feed.Sources(), 2)

		play(t, c, with(delta(version("E", 2)), only("s1", "10.0.0.0/8")))
		quiet(t, updates)
		play(t, c, with(delta(version("E", 3)), all("s2"), only("s1", "10.0.0.0/9")))
		u = next(t, updates)
		require.Empty(t, u.Set)
		require.Equal(t, []string{"s1[10.0.0.0/9]false", "s2[]true"}, told(u.Sources))
		play(t, c, delta(version("E", 4), set(2, target("s1", 2, "10.0.0.2/32"))))
		require.Empty(t, next(t, updates).Sources)
		c.finish(nil)

		c, req := nextFeed(t, f)
		require.Equal(t, version("E", 4).String(), req.GetResume().String())
		play(t, c, with(snapshot(version("F", 1), set(9, target("s1", 1, "10.0.0.1/32")), set(10, target("s1", 2, "10.0.0.2/32"))), only("s3"), only("s1", "10.0.0.0/9")))
		require.Equal(t, []string{"s3[]false"}, told(next(t, updates).Sources))
		c.finish(nil)
		c, _ = nextFeed(t, f)
		play(t, c, snapshot(version("G", 1), set(9, target("s1", 1, "10.0.0.1/32")), set(10, target("s1", 2, "10.0.0.2/32"))))
		require.Equal(t, []string{"s1[]true", "s3[]true"}, told(next(t, updates).Sources))
		require.Empty(t, feed.Sources())
	})
}
