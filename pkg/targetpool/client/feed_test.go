package client

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

func quiet(t *testing.T, updates chan Update) {
	t.Helper()
	synctest.Wait()
	require.Empty(t, updates)
}

func TestSnapshotInChunksIsAppliedAtOnce(t *testing.T) { // P12
	bubble(t, func(t *testing.T, f *fake, config Config) {
		feed, updates := follow(t, config)
		c, req := nextFeed(t, f)
		require.Nil(t, req.GetResume())
		require.Equal(t, testConduit.String(), req.GetConduit().String())
		play(t, c, snapshot(nil, set(1, target("s1", 1, "10.0.0.1/32"))), snapshot(nil, set(2, target("s1", 2, "10.0.0.2/32"))))
		quiet(t, updates)
		require.Empty(t, feed.Targets())

		play(t, c, snapshot(version("E", 7), set(3, target("s2", 1, "10.0.0.1/32"))))
		u := next(t, updates)
		require.True(t, u.First)
		require.Equal(t, Version{"E", 7}, u.Version)
		require.Equal(t, []string{"s1 10.0.0.1/32", "s1 10.0.0.2/32", "s2 10.0.0.1/32"}, names(u.Set))
		require.Empty(t, u.Removed)
		require.Len(t, feed.Targets(), 3)
		require.True(t, feed.Status().Live)
	})
}

func TestEmptySnapshotIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		_, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, heartbeat(nil), snapshot(version("E", 1)))
		u := next(t, updates)
		require.True(t, u.First)
		require.Empty(t, u.Set)
	})
}

func TestIncompleteSnapshotIsThrownAway(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		feed, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 1), set(1, target("s1", 1, "10.0.0.1/32"))))
		next(t, updates)
		c.finish(status.Error(codes.Unavailable, "restart"))

		c, _ = nextFeed(t, f)
		play(t, c, snapshot(nil, set(9, target("s1", 9, "10.0.0.9/32"))))
		c.finish(status.Error(codes.Unavailable, "restart"))

		c, req := nextFeed(t, f)
		require.Equal(t, version("E", 1).String(), req.GetResume().String())
		quiet(t, updates)
		require.Len(t, feed.Targets(), 1)
		play(t, c, snapshot(version("F", 1), set(2, target("s1", 1, "10.0.0.1/32"))))
		quiet(t, updates)
		require.Equal(t, Version{"F", 1}, feed.Version())
	})
}

func TestResumeSendsWhatWasMissed(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		feed, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 1), set(1, target("s1", 1, "10.0.0.1/32")), set(2, target("s1", 2, "10.0.0.2/32"))))
		next(t, updates)
		play(t, c, delta(version("E", 4), set(1, nil)))
		require.Equal(t, []string{"s1 10.0.0.1/32"}, names(next(t, updates).Removed))
		c.finish(nil)

		c, req := nextFeed(t, f)
		require.Equal(t, version("E", 4).String(), req.GetResume().String())
		require.False(t, feed.Status().Live)
		play(t, c, delta(version("E", 6), set(3, target("s1", 1, "10.0.0.3/32"))))
		u := next(t, updates)
		require.False(t, u.First)
		require.Equal(t, []string{"s1 10.0.0.3/32"}, names(u.Set))
		require.Equal(t, Version{"E", 6}, u.Version)
	})
}

func TestResumeWithNothingMissed(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		feed, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 1)))
		next(t, updates)
		c.finish(nil)
		c, _ = nextFeed(t, f)
		play(t, c, heartbeat(version("E", 1)))
		quiet(t, updates)
		require.True(t, feed.Status().Live)
		require.Empty(t, f.feeds)
	})
}

func TestOtherEpochTellsDifferencesOnly(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		feed, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 9),
			set(1, target("s1", 1, "10.0.0.1/32", "fd00::1/128")),
			set(2, target("s1", 2, "10.0.0.2/32")),
			set(3, target("s1", 3, "10.0.0.3/32"))))
		next(t, updates)
		c.finish(status.Error(codes.Unavailable, "restart"))

		// Other numbers, order, spelling and times; one left, one came, one changed.
		same := target("s1", 1, "FD00:0::1/128", "10.0.0.1")
		same.Caused = timestamppb.New(time.Unix(1, 0))
		changed := target("s1", 2, "10.0.0.2/32")
		changed.State = pb.Target_STATE_INACTIVE
		c, _ = nextFeed(t, f)
		play(t, c, snapshot(version("F", 1), set(3, same), set(1, changed), set(2, target("s1", 4, "10.0.0.4/32"))))
		u := next(t, updates)
		require.Equal(t, []string{"s1 10.0.0.2/32", "s1 10.0.0.4/32"}, names(u.Set))
		require.Equal(t, []string{"s1 10.0.0.3/32"}, names(u.Removed))

		// Deltas now go by the new numbers.
		play(t, c, delta(version("F", 2), set(3, nil)))
		require.Equal(t, []string{"s1 10.0.0.1/32,fd00::1/128"}, names(next(t, updates).Removed))
		require.Len(t, feed.Targets(), 2)
	})
}

func TestIdentifierKeepsAddressChanges(t *testing.T) { // D12
	bubble(t, func(t *testing.T, f *fake, config Config) {
		_, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 1), set(1, target("s1", 7, "10.0.0.1/32")), set(2, target("s1", 8, "10.0.0.2/32"))))
		next(t, updates)
		play(t, c, delta(version("E", 2), set(1, target("s1", 7, "10.0.0.9/32"))))
		u := next(t, updates)
		require.Equal(t, []string{"s1 10.0.0.9/32"}, names(u.Set))
		require.Equal(t, []string{"s1 10.0.0.1/32"}, names(u.Removed))
	})
}

func TestStaleIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		_, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		m := snapshot(version("E", 1), set(1, target("s1", 1, "10.0.0.1/32")))
		m.Stale = true
		play(t, c, m)
		require.True(t, next(t, updates).Stale)
		play(t, c, heartbeat(version("E", 1)))
		u := next(t, updates)
		require.False(t, u.Stale)
		require.Empty(t, u.Set)
	})
}

// What shows that the two sides are out of step leads to a stream without resume, and keeps what the receiver has.
func TestOutOfStepResubscribes(t *testing.T) { // P9
	first := snapshot(version("E", 5), set(1, target("s1", 1, "10.0.0.1/32")))
	for name, bad := range map[string][]*pb.TargetFeedWatchResponse{
		"heartbeat ahead":         {heartbeat(version("E", 6))},
		"heartbeat behind":        {heartbeat(version("E", 4))},
		"heartbeat other epoch":   {heartbeat(version("F", 5))},
		"delta other epoch":       {delta(version("F", 6), set(1, nil))},
		"delta backwards":         {delta(version("E", 4), set(1, nil))},
		"delta within a snapshot": {snapshot(nil), delta(version("E", 6), set(1, nil))},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fake, config Config) {
				feed, updates := follow(t, config)
				c, _ := nextFeed(t, f)
				play(t, c, first)
				next(t, updates)
				play(t, c, bad...)
				c, req := nextFeed(t, f)
				require.Nil(t, req.GetResume())
				require.ErrorIs(t, feed.Status().Err, errLost)
				quiet(t, updates)
				require.Len(t, feed.Targets(), 1)

				play(t, c, snapshot(version("E", 6), set(2, target("s1", 2, "10.0.0.2/32"))))
				u := next(t, updates)
				require.Equal(t, []string{"s1 10.0.0.2/32"}, names(u.Set))
				require.Equal(t, []string{"s1 10.0.0.1/32"}, names(u.Removed))
				c.finish(nil)
				_, req = nextFeed(t, f)
				require.Equal(t, version("E", 6).String(), req.GetResume().String())
			})
		})
	}
}

func TestDeltaOrHeartbeatBeforeTheSnapshot(t *testing.T) {
	for _, m := range []*pb.TargetFeedWatchResponse{delta(version("E", 1), set(1, nil)), heartbeat(version("E", 1))} {
		bubble(t, func(t *testing.T, f *fake, config Config) {
			_, updates := follow(t, config)
			c, _ := nextFeed(t, f)
			play(t, c, m)
			_, req := nextFeed(t, f)
			require.Nil(t, req.GetResume())
			quiet(t, updates)
		})
	}
}

func TestUnknownKindIsIgnored(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		_, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, &pb.TargetFeedWatchResponse{Kind: 99, Commit: true}, snapshot(version("E", 1)))
		require.True(t, next(t, updates).First)
		require.Empty(t, f.feeds)
	})
}

func TestSlowHandlerIsNoSilentServer(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		client, err := New(config)
		require.NoError(t, err)
		handled := make(chan Update)
		feed, err := client.WatchFeed(FeedConfig{Conduit: testConduit, Handler: func(u Update) {
			time.Sleep(time.Minute) // On the fake clock: four times the heartbeat timeout.
			handled <- u
		}})
		require.NoError(t, err)
		runUntilCleanup(t, feed.Run)
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 1)))
		<-handled
		play(t, c, delta(version("E", 2), set(1, target("s1", 1, "10.0.0.1/32"))))
		<-handled
		require.Empty(t, f.feeds)
		require.NoError(t, c.ctx.Err())
	})
}

func TestRunTwice(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		c, err := New(config)
		require.NoError(t, err)
		feed, err := c.WatchFeed(FeedConfig{Conduit: testConduit, Handler: func(Update) {}})
		require.NoError(t, err)
		for range 2 { // One after the other is fine, and resumes.
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- feed.Run(ctx) }()
			call, _ := nextFeed(t, f)
			play(t, call, snapshot(version("E", 1)))
			synctest.Wait()
			require.ErrorIs(t, feed.Run(ctx), errRunning)
			cancel()
			require.NoError(t, <-done)
			require.False(t, feed.Status().Live)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	good := testConfig("nsp-service.red:7778")
	_, err := New(good)
	require.NoError(t, err)
	for name, spoil := range map[string]func(*Config){
		"address is empty":         func(c *Config) { c.Address = "" },
		"credentials are missing":  func(c *Config) { c.Credentials = nil },
		"keepalive":                func(c *Config) { c.Keepalive = time.Second },
		"is negative":              func(c *Config) { c.HeartbeatTimeout = -1 },
		"maximum age":              func(c *Config) { c.MaxAge = time.Second },
		"is no range":              func(c *Config) { c.Backoff = Backoff{Base: 2, Max: 1} },
		"transport level security": func(c *Config) { c.PerRPC = secret{} },
	} {
		config := good
		spoil(&config)
		_, err := New(config)
		require.ErrorContains(t, err, name)
	}
	c, err := New(good)
	require.NoError(t, err)
	_, err = c.WatchFeed(FeedConfig{Conduit: testConduit})
	require.ErrorContains(t, err, "handler")
	_, err = c.WatchFeed(FeedConfig{Conduit: &pb.Conduit{Name: "c"}, Handler: func(Update) {}})
	require.ErrorContains(t, err, "trench")
	_, err = c.WatchAssignments(AssignmentsConfig{Workload: &pb.Workload{Pod: "p"}})
	require.ErrorContains(t, err, "handler")
	_, err = c.WatchAssignments(AssignmentsConfig{Workload: &pb.Workload{}, Handler: func(AssignmentList) {}})
	require.ErrorContains(t, err, "workload")
}

// secret is a credential that must not travel in plaintext.
type secret struct{}

func (secret) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return nil, nil
}
func (secret) RequireTransportSecurity() bool { return true }
