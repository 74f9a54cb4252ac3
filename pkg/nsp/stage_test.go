package nsp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// journal is what components write when they end.
type journal struct {
	mu    sync.Mutex
	ended []string
}

func (j *journal) add(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = append(j.ended, name)
}

// lasting runs until it is stopped.
func (j *journal) lasting(name string) component {
	return component{name, func(ctx context.Context) error {
		<-ctx.Done()
		j.add(name)
		return nil
	}}
}

// failing ends at once, in its own way.
func failing(name string, how func() error) component {
	return component{name, func(context.Context) error { return how() }}
}

func (j *journal) inOrder(t *testing.T) {
	t.Helper()
	require.Len(t, j.ended, 4)
	require.Equal(t, []string{"registry", "engine"}, j.ended[2:], "what others stand on goes last: %v", j.ended)
	require.ElementsMatch(t, []string{"cluster", "gRPC"}, j.ended[:2])
}

func (j *journal) stages(extra ...component) [][]component {
	return [][]component{
		{j.lasting("engine")}, {j.lasting("registry")}, slices.Concat([]component{j.lasting("cluster"), j.lasting("gRPC")}, extra),
	}
}

func TestStagesStopFromTheTop(t *testing.T) {
	var j journal
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runStages(ctx, j.stages()...) }()
	cancel()
	require.NoError(t, <-done)
	j.inOrder(t)
}

func TestOneThatEndsStopsAll(t *testing.T) {
	broken := errors.New("address in use")
	for name, tt := range map[string]struct {
		how  func() error
		says string
	}{
		"with an error":            {func() error { return broken }, "metrics: address in use"},
		"without one":              {func() error { return nil }, "metrics: ended by itself"},
		"in a panic":               {func() error { panic("index out of range") }, "metrics: panic: index out of range"},
		"in a panic with an error": {func() error { panic(broken) }, "address in use"},
	} {
		t.Run(name, func(t *testing.T) {
			var j journal
			err := runStages(t.Context(), j.stages(failing("metrics", tt.how))...)
			require.ErrorContains(t, err, tt.says)
			j.inOrder(t)
		})
	}
}

// What fails below stops what stands on it first.
func TestTheLowestFails(t *testing.T) {
	var j journal
	stages := j.stages()
	stages[0] = append(stages[0], failing("store", func() error { return errors.New("disk full") }))
	require.ErrorContains(t, runStages(t.Context(), stages...), "store: disk full")
	j.inOrder(t)
}

func TestWhatFailsWhileStoppingIsTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := runStages(ctx, []component{{"registry", func(ctx context.Context) error {
		<-ctx.Done()
		return errors.New("last write failed")
	}}})
	require.ErrorContains(t, err, "registry: last write failed")
}
