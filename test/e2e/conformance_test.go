package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/conformance"
	"github.com/nordix/meridio-nsp/test/play"
)

// Whoever serves nsp.v1 answers as Meridio's NSP did, and keeps what watches promise while it is killed. // P13 P17 P18 P20
func TestConformanceOfNamespaceProcess(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Target { return newScene(t).nsp })
}

func TestConformanceOfTrenchProcess(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Target {
		c := cluster.Get(t)
		namespace := c.Namespace(t)
		require.NoError(t, play.Configure(t.Context(), c.Client(), namespace, "trench-a", "conduit-a",
			map[string]int{"stream-a": 10, "stream-b": 10}))
		return newTrench(t, c, namespace).nsp
	})
}

func TestConformanceOfRelayingTrenchProcess(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Target { return relaying{newRelay(t).nsp} })
}

// relaying is a trench process that speaks for its trench alone.
type relaying struct{ *play.NSP }

// OneTrench implements conformance.OneTrench.
func (relaying) OneTrench() string { return "trench-a" }

// The clients of a relay notice nothing of a namespace process that is killed, but that it takes a while.
func TestHistoriesOfRelayWhoseNamespaceProcessIsKilled(t *testing.T) {
	conformance.RunHistories(t, newRelay(t))
}

// relay is a trench process whose namespace process can be killed.
type relay struct {
	nsp, namespace *play.NSP
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	s := newScene(t)
	require.NoError(t, s.cluster.Apply(t.Context(), fmt.Appendf(nil, operatorsRole, s.namespace), false))
	cfg := trenchConfig(t.Context(), t, s.cluster, s.namespace)
	cfg.Args = []string{"--namespace-nsp=" + s.nsp.Address()}
	nsp, err := play.StartNSP(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(nsp.Stop)
	return &relay{nsp: nsp, namespace: s.nsp}
}

// Dial implements conformance.Target.
func (r *relay) Dial() (*grpc.ClientConn, error) { return r.nsp.Dial() }

// Kill implements conformance.Target.
func (r *relay) Kill() { r.namespace.Kill() }

// Start implements conformance.Target.
func (r *relay) Start(ctx context.Context) error { return r.namespace.Start(ctx) }
