package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
)

// raw sends bytes as they are.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (raw) Unmarshal(mem.BufferSlice, any) error { return nil }

// Huge names, lists and strings are refused before they are kept, with a short message and a short line in the log.
func TestHugeInputIsNotKept(t *testing.T) {
	n := start(t, setup{mode: auth.None})
	huge := strings.Repeat("x", 1<<20)
	many := make([]string, maxReported+1)
	for i := range many {
		many[i] = fmt.Sprintf("fd00::%x", i)
	}
	long := registration(x1, 1, "172.16.0.1/24")
	long.Stream.Conduit.Trench.Name = huge
	for name, call := range map[string]func(context.Context, grpc.ClientConnInterface) error{
		"a registration of a huge trench": badRegister(long),
		"a frontend of a huge name":       badRegister(&nspv1.Target{Type: nspv1.Target_FRONTEND, Ips: []string{huge}}),
		"a frontend of a huge context": badRegister(&nspv1.Target{
			Type: nspv1.Target_FRONTEND, Ips: []string{"fe"}, Context: map[string]string{"identifier": huge},
		}),
		"a frontend of many names": badRegister(&nspv1.Target{Type: nspv1.Target_FRONTEND, Ips: many}),
		"a conduit":                badFeed(&targetpoolv1.Conduit{Trench: huge, Name: "c"}),
		"a pod":                    badWorkload(&targetpoolv1.Workload{Namespace: own, Pod: huge}),
		"an address":               badWorkload(&targetpoolv1.Workload{Address: huge}),
		"a report of many addresses": badReport(&targetpoolv1.Report{
			Addresses: many,
		}),
		"a report for another NSP": badReport(&targetpoolv1.Report{NspNamespace: huge}),
		"a filter of targets": func(ctx context.Context, conn grpc.ClientConnInterface) error {
			ss, err := nspv1.NewTargetRegistryClient(conn).Watch(ctx, &nspv1.Target{Stream: &nspv1.Stream{Name: huge}})
			if err == nil {
				_, err = ss.Recv()
			}
			return err
		},
		"a filter of the configuration": func(ctx context.Context, conn grpc.ClientConnInterface) error {
			ss, err := nspv1.NewConfigurationManagerClient(conn).WatchTrench(ctx, &nspv1.Trench{Name: huge})
			if err == nil {
				_, err = ss.Recv()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := call(n.ctx(), n.dial())
			require.Contains(t, []codes.Code{codes.InvalidArgument, codes.FailedPrecondition}, status.Code(err), "%.300v", err)
			require.Less(t, len(err.Error()), 8<<10)
		})
	}
	n.log.mu.Lock()
	defer n.log.mu.Unlock()
	for line := range strings.Lines(n.log.buf.String()) {
		require.Less(t, len(line), 16<<10, "%.300s", line)
	}
}

// What is no protobuf is the caller's mistake, not ours, though gRPC tells the caller otherwise by itself.
func TestGarbageIsTheCallersMistake(t *testing.T) {
	n := start(t, setup{mode: auth.None})
	for _, garbage := range [][]byte{{0x0a, 0xff}, []byte("\x0a\x04\x0a\x02\xff\xfe"), []byte(strings.Repeat("\xff", 1000))} {
		s, err := n.dial().NewStream(n.ctx(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
			targetpoolv1.TargetPool_Watch_FullMethodName, grpc.ForceCodecV2(raw{}))
		require.NoError(t, err)
		require.NoError(t, s.SendMsg(garbage))
		require.ErrorContains(t, s.RecvMsg(nil), unreadable)
	}
	require.Eventually(t, func() bool { return n.log.find("call failed", codes.InvalidArgument.String()) != "" }, patience, time.Millisecond)
	require.Empty(t, n.log.find("level=ERROR"))
}

// Of very many calls that make no sense some are logged.
func TestMistakesDoNotFillTheLog(t *testing.T) {
	n := start(t, setup{mode: auth.None})
	conn := n.dial()
	for range 2000 {
		require.Equal(t, codes.InvalidArgument, status.Code(badRegister(&nspv1.Target{})(n.ctx(), conn)))
	}
	n.log.mu.Lock()
	defer n.log.mu.Unlock()
	require.Less(t, strings.Count(n.log.buf.String(), "call failed"), 1000)
}

// A sidecar that reports without end fills no queue: what it says is read as fast as it is taken in.
func TestReportsWithoutEnd(t *testing.T) {
	n := start(t, setup{mode: auth.None})
	n.engine.Post(service(x1), slice(x1, 1, ready(2)))
	watch, err := targetpoolv1.NewTargetPoolClient(n.dial()).Watch(n.ctx())
	require.NoError(t, err)
	report := &targetpoolv1.Report{}
	for i := range maxReported {
		report.Addresses = append(report.Addresses, fmt.Sprintf("fd00::%x", i))
	}
	most := 0
	for i := range 200 {
		report.Addresses[0] = fmt.Sprintf("fd01::%x", i)
		require.NoError(t, watch.Send(&targetpoolv1.TargetPoolWatchRequest{Workload: pod("pod-2"), Report: report}))
		most = max(most, n.engine.Backlog())
	}
	require.Less(t, most, 10)
}

// A call that waits for an identifier takes a place as a watch does.
func TestWaitingForIdentifiersIsBounded(t *testing.T) {
	n := start(t, setup{mode: auth.None, edit: func(c *Config) { c.Limits = Limits{WatchesPerPeer: 1} }})
	conn := n.dial(from(9))
	reserve := func(ctx context.Context, i int, wait bool) error {
		_, err := targetpoolv1.NewReservationClient(conn).Reserve(ctx, &targetpoolv1.ReserveRequest{
			Stream: &targetpoolv1.Stream{Trench: "full", Conduit: "c", Name: "s"}, Ips: []string{fmt.Sprintf("172.16.0.%d", i)}, Wait: wait,
		})
		return err
	}
	for i := range 100 {
		require.NoError(t, reserve(n.ctx(), i, false))
	}
	ctx, end := context.WithCancel(n.ctx())
	first := make(chan error, 1)
	go func() { first <- reserve(ctx, 101, true) }()
	require.Eventually(t, func() bool { return n.queued.Load() == 1 }, patience, time.Millisecond)
	require.Equal(t, codes.ResourceExhausted, status.Code(reserve(n.ctx(), 102, true)))
	end()
	require.Equal(t, codes.Canceled, status.Code(<-first))
}
