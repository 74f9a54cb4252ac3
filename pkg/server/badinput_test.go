package server

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// badInput is a call that is refused, and the words by which its message names the object and the fault.
type badInput struct {
	name string
	call func(context.Context, grpc.ClientConnInterface) error
	code codes.Code
	says []string
}

func badRegister(t *nspv1.Target) func(context.Context, grpc.ClientConnInterface) error {
	return func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := nspv1.NewTargetRegistryClient(conn).Register(ctx, t)
		return err
	}
}

func badFeed(c *targetpoolv1.Conduit) func(context.Context, grpc.ClientConnInterface) error {
	return func(ctx context.Context, conn grpc.ClientConnInterface) error {
		ss, err := targetpoolv1.NewTargetFeedClient(conn).Watch(ctx, &targetpoolv1.TargetFeedWatchRequest{Conduit: c})
		if err == nil {
			_, err = ss.Recv()
		}
		return err
	}
}

// badPool sends requests and reads until there is an error.
func badPool(requests ...*targetpoolv1.TargetPoolWatchRequest) func(context.Context, grpc.ClientConnInterface) error {
	return func(ctx context.Context, conn grpc.ClientConnInterface) error {
		ss, err := targetpoolv1.NewTargetPoolClient(conn).Watch(ctx)
		for _, r := range requests {
			if err == nil {
				err = ss.Send(r)
			}
		}
		for err == nil {
			_, err = ss.Recv()
		}
		return err
	}
}

func badWorkload(w *targetpoolv1.Workload) func(context.Context, grpc.ClientConnInterface) error {
	return badPool(&targetpoolv1.TargetPoolWatchRequest{Workload: w})
}

func badReport(r *targetpoolv1.Report) func(context.Context, grpc.ClientConnInterface) error {
	return badPool(&targetpoolv1.TargetPoolWatchRequest{Workload: pod("web-0"), Report: r})
}

func pod(name string) *targetpoolv1.Workload {
	return &targetpoolv1.Workload{Namespace: own, Pod: name}
}

var badInputs = []badInput{
	{"registration without addresses", badRegister(registration(x1, 1)), codes.InvalidArgument, []string{"red/trench-a/conduit-a/x1", "no address"}},
	{"registration without stream", badRegister(&nspv1.Target{Ips: []string{"172.16.0.7/24"}}), codes.InvalidArgument, []string{"172.16.0.7/24", "name its stream"}},
	{
		"registration with a malformed address", badRegister(registration(x1, 1, "172.16.0.7/24", "172.16.0.300/24")),
		codes.InvalidArgument, []string{"trench-a/conduit-a/x1", `"172.16.0.300/24"`},
	},
	{
		"registration with a separator in an address", badRegister(registration(x1, 1, "172.16.0.7/24;172.16.0.8/24")), // P29
		codes.InvalidArgument, []string{`"172.16.0.7/24;172.16.0.8/24"`},
	},
	{
		"registration with 100 kB of context",
		badRegister(with(registration(x1, 1, "172.16.0.7/24"), func(t *nspv1.Target) { t.Context["more"] = strings.Repeat("x", 100_000) })),
		codes.InvalidArgument, []string{"172.16.0.7/24", "x1", "context", "bytes"},
	},
	{"feed without conduit", badFeed(nil), codes.InvalidArgument, []string{"conduit", "trench is empty"}},
	{"feed of a conduit without trench", badFeed(&targetpoolv1.Conduit{Name: "c"}), codes.InvalidArgument, []string{"trench is empty"}},
	{"feed of a malformed conduit", badFeed(&targetpoolv1.Conduit{Trench: "t/u", Name: "c"}), codes.InvalidArgument, []string{`"t/u"`}},
	{
		"feed of another namespace", badFeed(&targetpoolv1.Conduit{Namespace: "blue", Trench: "t", Name: "c"}),
		codes.FailedPrecondition, []string{"blue/t/c", "serves red"},
	},
	{"watch for nobody", badWorkload(nil), codes.InvalidArgument, []string{"name the workload"}},
	{"watch for a nameless pod", badWorkload(&targetpoolv1.Workload{Namespace: "red"}), codes.InvalidArgument, []string{`namespace "red"`, `pod ""`}},
	{"watch for a pod without namespace", badWorkload(&targetpoolv1.Workload{Pod: "web-0"}), codes.InvalidArgument, []string{`pod "web-0"`}},
	{"watch for a pod with a UID alone", badWorkload(&targetpoolv1.Workload{PodUid: "u1"}), codes.InvalidArgument, []string{`UID "u1"`}},
	{"watch for a malformed address", badWorkload(&targetpoolv1.Workload{Address: "10.0.0"}), codes.InvalidArgument, []string{`"10.0.0"`}},
	{
		"watch for a pod and an address", badWorkload(&targetpoolv1.Workload{Namespace: own, Pod: "web-0", Address: "10.0.0.1"}),
		codes.InvalidArgument, []string{"red/web-0", "10.0.0.1"},
	},
	{
		"report of a malformed address", badReport(&targetpoolv1.Report{Addresses: []string{"172.16.0.7/24", "eth0"}}),
		codes.InvalidArgument, []string{"red/web-0", `"eth0"`},
	},
	{
		"report of a sidecar of another NSP", badReport(&targetpoolv1.Report{NspNamespace: "blue"}),
		codes.FailedPrecondition, []string{"red/web-0", "blue", "red"},
	},
	{
		"report of the owners of no stream",
		badReport(&targetpoolv1.Report{Owners: []*targetpoolv1.StreamOwners{{Owners: []targetpoolv1.Owner{targetpoolv1.Owner_OWNER_POOL}}}}),
		codes.InvalidArgument, []string{"red/web-0", "owners", "trench is empty"},
	},
	{
		"later report of a malformed address",
		badPool(&targetpoolv1.TargetPoolWatchRequest{Workload: pod("web-0")},
			&targetpoolv1.TargetPoolWatchRequest{Report: &targetpoolv1.Report{Addresses: []string{"eth0"}}}),
		codes.InvalidArgument, []string{"red/web-0", `"eth0"`},
	},
}

// Each is refused with a message that names the object, and disturbs nobody. (P29 for separators in values)
func TestBadInput(t *testing.T) {
	n := start(t, setup{})
	conn := n.dial()
	all := n.legacy(n.dial(), &nspv1.Target{Status: nspv1.Target_ANY})
	require.Empty(t, n.next(all))
	lb := n.feed(n.dial(), nil)
	n.committed(lb)
	for _, tt := range badInputs {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.call(n.ctx(), conn)
			require.Equal(t, tt.code, status.Code(err), "%v", err)
			for _, word := range tt.says {
				require.ErrorContains(t, err, word)
			}
			require.NotEmpty(t, n.log.find("call failed", tt.code.String()), "it is in the log")
		})
	}
	// Whoever watched sees the next good registration and nothing of all that.
	good := registration(x1, 1, "172.16.0.9/24")
	n.register(conn, good)
	equal(n, []*nspv1.Target{disabled(good)}, n.next(all))
	n.committed(lb)
	require.Len(t, lb.changes, 1)
}

func TestUnregisterOfNonsenseIsNoError(t *testing.T) {
	n := start(t, setup{})
	n.unregister(n.dial(), &nspv1.Target{Ips: []string{"nonsense"}})
	n.unregister(n.dial(), registration(x1, 1, "172.16.0.9/24"))
}

// A version of another run is no error: the receiver gets a snapshot, and the log says for which conduit.
func TestResumeOfAnotherServer(t *testing.T) {
	n := start(t, setup{})
	conn := n.dial()
	n.enable(conn, registration(x1, 1, "172.16.0.9/24"))
	lb := n.feed(conn, &targetpoolv1.Version{Epoch: "another-run", Revision: 7})
	n.committed(lb)
	require.Equal(t, targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT, lb.kind)
	require.Len(t, lb.targets, 1)
	require.Equal(t, epoch, lb.version.GetEpoch())
	require.NotEmpty(t, n.log.find("resume", "another-run", "red/trench-a/conduit-a"))

	// A revision that this run has not reached is none of its own either.
	lb = n.feed(conn, &targetpoolv1.Version{Epoch: epoch, Revision: 1 << 40})
	n.committed(lb)
	require.Equal(t, targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT, lb.kind)
}
