package auth_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

func identity(id string) auth.Identity {
	return auth.Identity{SPIFFEID: spiffeid.RequireFromString(id)}
}

func spiffeIDs(all map[auth.Target]string) map[auth.Target]auth.TargetIdentity {
	out := map[auth.Target]auth.TargetIdentity{}
	for t, id := range all {
		out[t] = auth.TargetIdentity{SPIFFEID: id}
	}
	return out
}

const vmID, otherID = "spiffe://example.org/vm/1", "spiffe://example.org/vm/2"

func TestIdentityProvesOneTarget(t *testing.T) {
	var log bytes.Buffer
	targets := auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
	two := auth.Target{Namespace: "apps", Name: "vm-2", UID: "u2"}
	targets.Replace("apps", spiffeIDs(map[auth.Target]string{vm: vmID, two: otherID}))
	found, err := targets.Find(identity(vmID))
	require.NoError(t, err)
	require.Equal(t, vm, found)
	for name, i := range map[string]auth.Identity{
		"nobody's":  identity("spiffe://example.org/vm/3"),
		"none":      {},
		"longer":    identity(vmID + "/x"),
		"a foreign": identity("spiffe://example.com/vm/1"),
	} {
		found, err := targets.Find(i)
		require.NoError(t, err, name)
		require.Zero(t, found, name)
	}

	thief := auth.Target{Namespace: "evil", Name: "vm-1", UID: "u9"}
	targets.Replace("evil", spiffeIDs(map[auth.Target]string{thief: vmID}))
	_, err = targets.Find(identity(vmID))
	require.ErrorIs(t, err, auth.ErrDenied)
	require.ErrorContains(t, err, "ExternalTargets apps/vm-1 and evil/vm-1 both claim")
	require.Equal(t, 1, targets.Shared())
	require.Contains(t, log.String(), vmID)
	found, err = targets.Find(identity(otherID))
	require.NoError(t, err)
	require.Equal(t, two, found, "another one is not disturbed")

	targets.Replace("evil", nil)
	found, err = targets.Find(identity(vmID))
	require.NoError(t, err)
	require.Equal(t, vm, found)
	require.Zero(t, targets.Shared())
}

// Somebody who may make ExternalTargets must not take the place of a ServiceAccount.
func TestAccountIsNoTarget(t *testing.T) {
	targets := auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.DiscardHandler)})
	targets.Replace("evil", spiffeIDs(map[auth.Target]string{vm: "spiffe://example.org/ns/red/sa/lb"}))
	i := identity("spiffe://example.org/ns/red/sa/lb")
	i.Account = auth.ServiceAccount{Namespace: "red", Name: "lb"}
	found, err := targets.Find(i)
	require.NoError(t, err)
	require.Zero(t, found)
}

func TestHoldEndsWithTheProof(t *testing.T) {
	second := vm
	second.UID = "u2"
	for name, now := range map[string]map[auth.Target]string{
		"the target is gone":          nil,
		"it has another identity":     {vm: otherID},
		"it was made anew":            {second: vmID},
		"somebody else claims it too": {vm: vmID, {Namespace: "apps", Name: "x", UID: "x"}: vmID},
	} {
		t.Run(name, func(t *testing.T) {
			targets := auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.DiscardHandler)})
			targets.Replace("apps", spiffeIDs(map[auth.Target]string{vm: vmID}))
			var ended, released error
			release := targets.Hold(identity(vmID), vm, func(err error) { released = err })
			targets.Hold(identity(vmID), vm, func(err error) { ended = err })
			targets.Replace("blue", spiffeIDs(map[auth.Target]string{{Namespace: "blue", Name: "y", UID: "y"}: otherID + "/y"}))
			require.NoError(t, ended, "what is none of its business")
			release()
			targets.Replace("apps", spiffeIDs(now))
			require.Error(t, ended)
			require.NoError(t, released)
			ended = nil
			targets.Hold(identity(vmID), vm, func(err error) { ended = err })
			require.Error(t, ended, "it changed between the question and the hold")
		})
	}
}

func TestIdentitiesOutlastARestart(t *testing.T) {
	var saved []byte
	first := auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.DiscardHandler), Save: func(data []byte) { saved = data }})
	gone := auth.Target{Namespace: "gone", Name: "vm-2", UID: "u2"}
	first.Replace("apps", spiffeIDs(map[auth.Target]string{vm: vmID}))
	first.Replace("gone", spiffeIDs(map[auth.Target]string{gone: otherID}))
	second := auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, second.Restore(saved, []string{"apps"}))
	found, err := second.Find(identity(vmID))
	require.NoError(t, err)
	require.Equal(t, vm, found)
	found, err = second.Find(identity(otherID))
	require.NoError(t, err)
	require.Zero(t, found, "its namespace is not watched any more")
	second.Replace("apps", nil)
	found, err = second.Find(identity(vmID))
	require.NoError(t, err)
	require.Zero(t, found, "what the cluster says now counts")
	require.ErrorContains(t, second.Restore([]byte("nonsense"), nil), "stored identities")
}
