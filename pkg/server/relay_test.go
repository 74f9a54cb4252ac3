package server

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// Who relays says for whom he calls, so he has to prove what he is.
func TestRelayIsForTrenchProcesses(t *testing.T) {
	n := start(t, setup{})
	_, err := targetpoolv1.NewRelayClient(n.dial(from(1))).Position(n.ctx(), &targetpoolv1.RelayPositionRequest{Trench: "trench-a"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, "--trench-process-accounts")
	require.NoError(t, trenchProcess(&Config{}, auth.Caller{Mode: auth.PeerAddress, TrenchProcess: true}))
}

func TestRelayStaysInItsTrench(t *testing.T) {
	n := start(t, setup{mode: auth.None})
	relay := targetpoolv1.NewRelayClient(n.dial())
	reg := func(trench string) *targetpoolv1.Registration {
		return &targetpoolv1.Registration{
			Stream: &targetpoolv1.Stream{Trench: trench, Conduit: "conduit-a", Name: "x1"}, Ips: []string{"172.16.0.1/24"},
			Context: map[string]string{"identifier": "1"},
		}
	}
	_, err := relay.Register(n.ctx(), &targetpoolv1.RelayRegisterRequest{Trench: "trench-b", Registration: reg("trench-a")})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	_, err = relay.Unregister(n.ctx(), &targetpoolv1.RelayUnregisterRequest{Trench: "trench-b", Registration: reg("trench-a")})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	_, err = relay.Restore(n.ctx(), &targetpoolv1.RelayRestoreRequest{
		Trench: "trench-b", Registrations: []*targetpoolv1.Restored{{Registration: reg("trench-a")}},
	})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	for _, trench := range []string{"", "trench-a"} {
		_, err = relay.Register(n.ctx(), &targetpoolv1.RelayRegisterRequest{Trench: trench})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "trench %q", trench)
	}
	other := reg("trench-a")
	other.Stream.Namespace = "blue"
	_, err = relay.Register(n.ctx(), &targetpoolv1.RelayRegisterRequest{Trench: "trench-a", Registration: other})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

// A watch has reached the position that a call returned; the peer that is passed on is the one that counts; a removal that
// comes late is void in the eyes of this run only where something was registered since.
func TestRelayPositions(t *testing.T) {
	n := start(t, setup{mode: auth.None})
	relay := targetpoolv1.NewRelayClient(n.dial())
	watch, err := relay.Watch(n.ctx(), &targetpoolv1.RelayWatchRequest{Trench: "trench-a"})
	require.NoError(t, err)
	reg := &targetpoolv1.Registration{Type: int32(registry.Frontend), Ips: []string{"fe-1"}}
	stored, err := relay.Register(n.ctx(), &targetpoolv1.RelayRegisterRequest{Trench: "trench-a", Registration: reg, Peer: "10.0.0.7"})
	require.NoError(t, err)
	require.EqualValues(t, 1, stored.GetPosition().GetRegistrations())
	var id uint64
	for at := uint64(0); at < stored.GetPosition().GetVersion().GetRevision(); {
		m, err := watch.Recv()
		require.NoError(t, err)
		at = m.GetPosition().GetVersion().GetRevision()
		for _, c := range m.GetChanges() {
			id = c.GetId()
			require.Equal(t, []string{"fe-1"}, c.GetRow().GetRegistration().GetIps())
			require.EqualValues(t, registry.Disabled, c.GetRow().GetRegistration().GetStatus())
		}
	}
	require.NotZero(t, id)

	late := func(epoch string, registrations uint64) (gone bool) {
		_, err := relay.Unregister(n.ctx(), &targetpoolv1.RelayUnregisterRequest{
			Trench: "trench-a", Registration: reg, Seen: &targetpoolv1.Seen{Id: id, Position: &targetpoolv1.Position{
				Version: &targetpoolv1.Version{Epoch: epoch}, Registrations: registrations,
			}},
		})
		require.NoError(t, err)
		rows, err := n.engine.Targets(n.ctx(), engine.Filter{})
		require.NoError(t, err)
		if len(rows) > 0 {
			require.Equal(t, addr("10.0.0.7"), rows[0].Entry.Caller.Peer)
			require.Equal(t, "trench-a", rows[0].Entry.Scope)
		}
		return len(rows) == 0
	}
	require.False(t, late("another run", 5))
	require.False(t, late(epoch, 0))
	require.True(t, late(epoch, 1))
	m, err := watch.Recv()
	require.NoError(t, err)
	require.Nil(t, m.GetChanges()[0].GetRow())
}

// A pod that the caller of a trench process has proven to be counts, whatever address the call came from, and is told to whoever
// follows.
func TestRelayPassesProofOn(t *testing.T) {
	n := start(t, setup{mode: auth.None})
	relay := targetpoolv1.NewRelayClient(n.dial())
	reg := &targetpoolv1.Registration{
		Stream: &targetpoolv1.Stream{Trench: "trench-a", Conduit: "conduit-a", Name: "x1"}, Ips: []string{"172.16.0.1/24"},
		Context: map[string]string{"identifier": "1"},
	}
	pod := func(uid string) *targetpoolv1.ProvenPod {
		return &targetpoolv1.ProvenPod{Namespace: own, Name: "pod", Uid: uid}
	}
	_, err := relay.Register(n.ctx(), &targetpoolv1.RelayRegisterRequest{Trench: "trench-a", Registration: reg, Peer: "10.0.0.7", Proven: pod("u1")})
	require.NoError(t, err)
	watch, err := relay.Watch(n.ctx(), &targetpoolv1.RelayWatchRequest{Trench: "trench-a"})
	require.NoError(t, err)
	m, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, "u1", m.GetChanges()[0].GetRow().GetProvenPodUid())
	for _, other := range []*targetpoolv1.ProvenPod{nil, {}, pod("u2"), {Namespace: own, Name: "pod"}} {
		_, err = relay.Register(n.ctx(), &targetpoolv1.RelayRegisterRequest{Trench: "trench-a", Registration: reg, Peer: "10.0.0.7", Proven: other})
		require.Equal(t, codes.PermissionDenied, status.Code(err))
		_, err = relay.Unregister(n.ctx(), &targetpoolv1.RelayUnregisterRequest{Trench: "trench-a", Registration: reg, Peer: "10.0.0.7", Proven: other})
		require.Equal(t, codes.PermissionDenied, status.Code(err))
	}
	_, err = relay.Unregister(n.ctx(), &targetpoolv1.RelayUnregisterRequest{Trench: "trench-a", Registration: reg, Proven: pod("u1")})
	require.NoError(t, err)
	_, err = relay.Restore(n.ctx(), &targetpoolv1.RelayRestoreRequest{
		Trench: "trench-a", Registrations: []*targetpoolv1.Restored{{Registration: reg, Proven: pod("u3")}},
	})
	require.NoError(t, err)
	rows, err := n.engine.Targets(n.ctx(), engine.Filter{})
	require.NoError(t, err)
	require.Equal(t, "u3", rows[0].Entry.Caller.PodUID)
}
