package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
)

// deletable are tokens of pods that can be deleted, and what follows from that.
type deletable struct {
	tokens
	checked  *auth.Tokens
	departed auth.Departed
	deleted  sync.Map
}

func (d *deletable) Verify(ctx context.Context, raw string) (auth.Token, error) {
	if _, is := d.deleted.Load(raw); is {
		return auth.Token{}, auth.Unproven(auth.BadToken, "the pod is no more")
	}
	return d.tokens.Verify(ctx, raw)
}

// leaves takes a pod of namespace red out of its slices.
func (d *deletable) leaves(i int, deleted bool) {
	if deleted {
		d.deleted.Store(fmt.Sprint("red/", i), true)
	}
	uid := fmt.Sprint("uid-", i)
	d.departed.Listed(uid, false)
	d.checked.Forget(uid)
}

func withDeletable(t *testing.T) (*nsp, *deletable) {
	d := &deletable{tokens: tokens{expires: map[string]time.Time{}}}
	d.checked = auth.NewTokens(auth.TokensConfig{Verifier: d, Departed: &d.departed})
	return start(t, setup{mode: auth.ByToken, edit: func(c *Config) { c.Tokens = d.checked }}), d
}

// The watches of a deleted pod end, of whatever kind they are; those of a pod that has merely left its slices go on. What the latter
// has registered stays its own.
func TestWatchesEndWithTheirPod(t *testing.T) {
	n, d := withDeletable(t)
	conn := n.dial(from(9))
	list := func(i int) grpc.ServerStreamingClient[nspv1.TargetResponse] {
		watch, err := nspv1.NewTargetRegistryClient(conn).Watch(n.as(fmt.Sprint("red/", i)), &nspv1.Target{Status: nspv1.Target_ANY})
		require.NoError(t, err)
		_, err = watch.Recv()
		require.NoError(t, err)
		return watch
	}
	deleted, relabelled := list(1), list(2)
	pool, err := targetpoolv1.NewTargetPoolClient(conn).Watch(n.as("red/1"))
	require.NoError(t, err)
	require.NoError(t, pool.Send(&targetpoolv1.TargetPoolWatchRequest{Workload: pod("pod-1")}))
	_, err = pool.Recv()
	require.NoError(t, err)

	d.leaves(2, false)
	require.Eventually(t, func() bool { return !d.departed.Gone("uid-2") }, patience, time.Millisecond, "it is asked about at once")
	d.leaves(1, true)
	for err = nil; err == nil; {
		_, err = deleted.Recv()
	}
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.ErrorContains(t, err, "the pod is no more")
	for err = nil; err == nil; {
		_, err = pool.Recv()
	}
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.True(t, d.departed.Gone("uid-1"), "others may have what was its own")

	_, err = nspv1.NewTargetRegistryClient(conn).Register(n.as("red/2"), registration(x1, 2, "172.16.0.2/24"))
	require.NoError(t, err)
	told, err := relabelled.Recv()
	require.NoError(t, err)
	require.Len(t, told.GetTargets(), 1)
	require.False(t, d.departed.Gone("uid-2"))
	require.Eventually(t, func() bool { return len(n.server.proofs.pods()) == 1 }, patience, time.Millisecond, "nothing is left of the other")
}

// Whoever opens a watch and says nothing keeps neither its place beyond its token nor the server from ending.
func TestSilentCallerIsNotWaitedFor(t *testing.T) {
	n, v := byToken(t, nil)
	silent := func(ctx context.Context, method string) error {
		s, err := n.dial(from(9)).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		require.NoError(t, err)
		return s.RecvMsg(&nspv1.TargetResponse{})
	}
	v.expires["red/1"] = time.Now().Add(time.Second)
	err := silent(n.as("red/1"), nspv1.TargetRegistry_Watch_FullMethodName)
	require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)

	ended := make(chan error, 2)
	for _, method := range []string{targetpoolv1.TargetPool_Watch_FullMethodName, targetpoolv1.TargetFeed_Watch_FullMethodName} {
		go func() { ended <- silent(n.as("red/2"), method) }()
	}
	require.Eventually(t, func() bool { return len(n.server.proofs.of("uid-2")) == 2 }, patience, time.Millisecond)
	began := time.Now()
	require.NoError(t, n.stop())
	for range 2 {
		require.Equal(t, codes.Unavailable, status.Code(<-ended))
	}
	require.Less(t, time.Since(began), patience/2, "that is the grace")
}

// flooded verifies tokens of pods, and takes as long as it is given over forged ones.
type flooded struct {
	tokens
	forged atomic.Int64
}

func (f *flooded) Verify(ctx context.Context, raw string) (auth.Token, error) {
	token, err := f.tokens.Verify(ctx, raw)
	if err != nil {
		f.forged.Add(1)
		<-ctx.Done()
	}
	return token, err
}

// While a crowd shows forged tokens, whose verification takes all the time there is, those who are known register as ever, and
// nobody of the crowd is let in.
func TestFloodOfForgedTokens(t *testing.T) {
	v := &flooded{tokens: tokens{expires: map[string]time.Time{}}}
	n := start(t, setup{mode: auth.ByToken, edit: func(c *Config) { c.Tokens = auth.NewTokens(auth.TokensConfig{Verifier: v}) }})
	const pods = 20
	good := nspv1.NewTargetRegistryClient(n.dial(from(9)))
	register := func(i, id int) error {
		_, err := good.Register(n.as(fmt.Sprint("red/", i)), registration(x1, id, fmt.Sprintf("172.16.%d.%d/24", i, id)))
		return err
	}
	for i := range pods {
		require.NoError(t, register(i, 1))
	}
	ctx, end := context.WithCancel(n.ctx())
	var crowd sync.WaitGroup
	var let atomic.Int64
	for p := range 10 {
		bad := nspv1.NewTargetRegistryClient(n.dial(from(20 + p)))
		for k := range 8 {
			crowd.Go(func() {
				for j := 0; ctx.Err() == nil; j++ {
					_, err := bad.Register(n.asIn(ctx, fmt.Sprintf("forged-%d-%d-%d", p, k, j)), registration(x1, 1, "172.16.0.1/24"))
					if err == nil {
						let.Add(1)
					}
				}
			})
		}
	}
	require.Eventually(t, func() bool { return v.forged.Load() >= 16 }, patience, time.Millisecond, "every slot for strangers is taken")
	for id := 2; id < 12; id++ {
		for i := range pods {
			require.NoError(t, register(i, id))
		}
	}
	end()
	crowd.Wait()
	require.Zero(t, let.Load())
	_, err := good.Register(n.as("red/99"), registration(x1, 99, "172.16.99.99/24"))
	require.NoError(t, err, "somebody new, afterwards")
}
