package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

const (
	snapshot = targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT
	delta    = targetpoolv1.TargetFeedWatchResponse_KIND_DELTA
)

func commit(kind targetpoolv1.TargetFeedWatchResponse_Kind, rev uint64, changes ...*targetpoolv1.Change) *targetpoolv1.TargetFeedWatchResponse {
	return &targetpoolv1.TargetFeedWatchResponse{
		Kind: kind, Commit: true, Version: &targetpoolv1.Version{Epoch: "e", Revision: rev}, Changes: changes,
	}
}

func set(id uint64, state targetpoolv1.Target_State, reason string) *targetpoolv1.Change {
	return &targetpoolv1.Change{Id: id, Target: &targetpoolv1.Target{
		Stream: "http", Identifier: uint32(id), Addresses: []string{"172.16.0." + string(rune('0'+id)) + "/24"}, State: state, Reason: reason,
		Caused: timestamppb.New(time.Now().Add(-time.Millisecond)), Pod: "red/web",
		Components: []*targetpoolv1.Component{{Cluster: "west", Namespace: "red", Service: "http"}},
	}}
}

func feedExample() *fake {
	return &fake{feed: []*targetpoolv1.TargetFeedWatchResponse{
		commit(snapshot, 1, set(1, targetpoolv1.Target_STATE_ACTIVE, "Ready")),
		commit(delta, 2, set(2, targetpoolv1.Target_STATE_ACTIVE, "Ready")),
		commit(delta, 3, set(2, targetpoolv1.Target_STATE_INACTIVE, "NotReady")),
		commit(delta, 4, &targetpoolv1.Change{Id: 1}),
	}}
}

// lines runs a command until it has printed so many lines, then interrupts it, as Ctrl-C does.
func lines(t *testing.T, count int, args ...string) (out []string) {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	r, w := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- execute(ctx, append([]string{"nsp"}, args...), w, &stderr)
		_ = w.Close()
	}()
	scanner := bufio.NewScanner(r)
	for len(out) < count && scanner.Scan() {
		out = append(out, scanner.Text())
	}
	interrupt()
	_, _ = io.Copy(io.Discard, r)
	require.Zero(t, <-code, stderr.String())
	require.Empty(t, stderr.String())
	require.Len(t, out, count)
	return out
}

// untimed puts a T for times of day and an L for latencies.
func untimed(lines []string) []string {
	for i, l := range lines {
		l = regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d{3}`).ReplaceAllString(l, "T")
		lines[i] = regexp.MustCompile(`\b[0-9.]+(ms|µs|s)\b`).ReplaceAllString(l, "L")
	}
	return lines
}

func TestWatchFeed(t *testing.T) {
	addr := serve(t, feedExample())
	require.Equal(t, []string{
		"T  +  http  1  172.16.0.1/24  ACTIVE  Ready  -",
		"T  +  http  2  172.16.0.2/24  ACTIVE  Ready  L",
		"T  ~  http  2  172.16.0.2/24  INACTIVE  NotReady  L",
		"T  -  http  1  172.16.0.1/24  ACTIVE  Ready  -",
	}, untimed(lines(t, 4, "watch", "feed", "trench-a/lb", "--server", addr)))
	require.Equal(t, "T  +  http  1  172.16.0.1/24  ACTIVE  Ready  -  red/web  west/red/http  e/1",
		untimed(lines(t, 1, "watch", "feed", "trench-a/lb", "--server", addr, "-o", "wide"))[0])

	empty := serve(t, &fake{feed: []*targetpoolv1.TargetFeedWatchResponse{commit(snapshot, 1)}})
	require.Equal(t, []string{"T   the conduit has no targets"}, untimed(lines(t, 1, "watch", "feed", "trench-a/lb", "--server", empty)))
}

func TestWatchFeedForMachines(t *testing.T) {
	addr := serve(t, feedExample())
	var changes []string
	for _, l := range lines(t, 4, "watch", "feed", "trench-a/lb", "--server", addr, "-o", "json") {
		var e struct {
			Change         string
			Snapshot       bool
			Revision       uint64
			Target         struct{ State, Pod string }
			LatencySeconds *float64
		}
		require.NoError(t, json.Unmarshal([]byte(l), &e))
		require.Equal(t, "red/web", e.Target.Pod)
		require.Equal(t, e.Snapshot || e.Change == "removed", e.LatencySeconds == nil)
		changes = append(changes, e.Change+" "+e.Target.State)
	}
	require.Equal(t, []string{"added STATE_ACTIVE", "added STATE_ACTIVE", "changed STATE_INACTIVE", "removed STATE_ACTIVE"}, changes)

	text := lines(t, 30, "watch", "feed", "trench-a/lb", "--server", addr, "-o", "yaml")
	require.Equal(t, "---", text[0])
	first, _, _ := strings.Cut(strings.Join(text[1:], "\n"), "---")
	var e map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(first), &e))
	require.Equal(t, "added", e["change"])
}

func list(rev uint64, names ...string) *targetpoolv1.TargetPoolWatchResponse {
	a := &targetpoolv1.Assignments{}
	for _, n := range names {
		name, service, _ := strings.Cut(n, "@")
		a.Items = append(a.Items, &targetpoolv1.Assignment{Stream: streamNamed(name), Services: []string{"red/" + service}})
	}
	return &targetpoolv1.TargetPoolWatchResponse{Version: &targetpoolv1.Version{Epoch: "e", Revision: rev}, Assignments: a}
}

func TestWatchAssignments(t *testing.T) {
	addr := serve(t, &fake{lists: []*targetpoolv1.TargetPoolWatchResponse{
		list(1), list(2, "http@a", "sql@a"), list(3, "http@b"), list(4),
	}})
	want := []string{
		"T   no stream",
		"T  +  red/trench-a/lb/http  red/a",
		"T  +  red/trench-a/lb/sql  red/a",
		"T  -  red/trench-a/lb/sql  red/a",
		"T  ~  red/trench-a/lb/http  red/b",
		"T  -  red/trench-a/lb/http  red/b",
		"T   no stream",
	}
	require.Equal(t, want, untimed(lines(t, 7, "watch", "assignments", "red/web-0", "--server", addr)))
	require.Equal(t, want, untimed(lines(t, 7, "watch", "assignments", "--address", "10.0.0.1", "--server", addr)))

	var counts []int
	for _, l := range lines(t, 4, "watch", "assignments", "red/web-0", "--server", addr, "-o", "json") {
		var e struct{ Assignments []any }
		require.NoError(t, json.Unmarshal([]byte(l), &e))
		require.NotNil(t, e.Assignments)
		counts = append(counts, len(e.Assignments))
	}
	require.Equal(t, []int{0, 2, 1, 0}, counts)
}

// The client tries for ever; a person is told at once.
func TestWatchThatCannotBegin(t *testing.T) {
	fails(t, exitFailed, []string{"watch", "feed", "a/b", "--server", "127.0.0.1:1"}, "is the NSP running?")
	denied := serve(t, &fake{err: status.Error(codes.PermissionDenied, "that is not your pod")})
	fails(t, exitFailed, []string{"watch", "assignments", "red/web-0", "--server", denied}, "PermissionDenied", "that is not your pod")
}

// What breaks later is told, and the client goes on.
func TestWatchThatIsInterrupted(t *testing.T) {
	f := feedExample()
	f.err = status.Error(codes.Unavailable, "shutting down")
	require.Contains(t, complaint(t, "watch", "feed", "a/b", "--server", serve(t, f)), "shutting down")
}

func TestWatchThatHasNothingToTellYet(t *testing.T) {
	require.Contains(t, complaint(t, "watch", "feed", "a/b", "--timeout", "50ms", "--server", serve(t, &fake{})), "still waiting")
}

// complaint is the first line that a watch writes to stderr; the watch goes on after it, until it is interrupted.
func complaint(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() { code <- execute(ctx, append([]string{"nsp"}, args...), io.Discard, w) }()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	require.Empty(t, code)
	cancel()
	go func() { _, _ = io.Copy(io.Discard, r) }()
	require.Zero(t, <-code)
	require.NoError(t, w.Close())
	return line
}
