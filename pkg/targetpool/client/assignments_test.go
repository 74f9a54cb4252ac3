package client

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

var testWorkload = &pb.Workload{Namespace: "red", Pod: "target-0", PodUid: "u0"}

func followAssignments(t *testing.T, config Config) (*Assignments, chan AssignmentList) {
	t.Helper()
	c, err := New(config)
	require.NoError(t, err)
	lists := make(chan AssignmentList, 1000)
	a, err := c.WatchAssignments(AssignmentsConfig{Workload: testWorkload, Handler: func(l AssignmentList) { lists <- l }})
	require.NoError(t, err)
	runUntilCleanup(t, a.Run)
	return a, lists
}

func list(v *pb.Version, streams ...string) *pb.TargetPoolWatchResponse {
	m := &pb.TargetPoolWatchResponse{Version: v, Assignments: &pb.Assignments{}}
	for _, s := range streams {
		m.Assignments.Items = append(m.Assignments.Items, &pb.Assignment{
			Stream:   &pb.Stream{Namespace: "red", Trench: "trench-a", Conduit: "conduit-1", Name: s},
			Services: []string{"red/" + s},
		})
	}
	return m
}

func streams(l AssignmentList) []string {
	out := []string{}
	for _, item := range l.Items {
		out = append(out, item.GetStream().GetName())
	}
	return out
}

func TestAssignments(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		a, lists := followAssignments(t, config)
		c := next(t, f.pools)
		req := <-c.requests
		require.Equal(t, testWorkload.String(), req.GetWorkload().String())
		require.Nil(t, req.GetReport())

		play(t, c, &pb.TargetPoolWatchResponse{}, list(version("E", 3), "s2", "s1"))
		l := next(t, lists)
		require.Equal(t, []string{"s1", "s2"}, streams(l))
		require.Equal(t, Version{"E", 3}, l.Version)
		require.True(t, a.Status().Live)

		play(t, c, &pb.TargetPoolWatchResponse{Version: version("E", 3)}, list(version("E", 4)))
		require.Empty(t, next(t, lists).Items)
		require.Empty(t, f.pools)
	})
}

func TestFirstListIsToldEvenIfEmpty(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		_, lists := followAssignments(t, config)
		play(t, next(t, f.pools), list(version("E", 1)))
		require.Empty(t, next(t, lists).Items)
	})
}

func TestReconnectWithTheSameListTellsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		a, lists := followAssignments(t, config)
		c := next(t, f.pools)
		play(t, c, list(version("E", 3), "s1", "s2"))
		next(t, lists)
		c.finish(status.Error(codes.Unavailable, "restart"))
		play(t, next(t, f.pools), list(version("F", 1), "s2", "s1"))
		synctest.Wait()
		require.Empty(t, lists)
		require.True(t, a.Status().Live)
	})
}

func TestLostListIsSeenByHeartbeat(t *testing.T) { // P9
	for _, beats := range [][]*pb.TargetPoolWatchResponse{
		{{Version: version("E", 4)}},
		{list(version("E", 3), "s1"), {Version: version("E", 4)}},
	} {
		bubble(t, func(t *testing.T, f *fake, config Config) {
			a, lists := followAssignments(t, config)
			play(t, next(t, f.pools), beats...)
			c := next(t, f.pools)
			require.ErrorIs(t, a.Status().Err, errLost)
			play(t, c, list(version("E", 4), "s1", "s2"))
			for range len(beats) {
				next(t, lists)
			}
		})
	}
}

func TestReportIsSentAgainOnEveryStream(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		a, _ := followAssignments(t, config)
		c := next(t, f.pools)
		require.Nil(t, (<-c.requests).GetReport())
		play(t, c, list(version("E", 1)))

		report := &pb.Report{Addresses: []string{"10.0.0.1"}, NspNamespace: "red"}
		a.Report(report)
		req := <-c.requests
		require.Nil(t, req.GetWorkload())
		require.Equal(t, []string{"10.0.0.1"}, req.GetReport().GetAddresses())

		a.Report(report) // Nothing new.
		synctest.Wait()
		require.Empty(t, c.requests)

		report.Addresses[0] = "spoiled" // The caller's own business.
		c.finish(nil)
		c = next(t, f.pools)
		req = <-c.requests
		require.Equal(t, testWorkload.String(), req.GetWorkload().String())
		require.Equal(t, []string{"10.0.0.1"}, req.GetReport().GetAddresses())
	})
}

func TestLatestReportWinsWhileAway(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		client, err := New(config)
		require.NoError(t, err)
		a, err := client.WatchAssignments(AssignmentsConfig{Workload: testWorkload, Handler: func(AssignmentList) {}})
		require.NoError(t, err)
		for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			a.Report(&pb.Report{Addresses: []string{address}})
		}
		runUntilCleanup(t, a.Run)
		c := next(t, f.pools)
		require.Equal(t, []string{"10.0.0.3"}, (<-c.requests).GetReport().GetAddresses())
		synctest.Wait()
		require.Empty(t, c.requests)
	})
}
