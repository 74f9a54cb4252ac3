package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v6"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
	"github.com/nordix/meridio-nsp/pkg/external/serve"
)

func TestServes(t *testing.T) {
	socket := "unix://" + filepath.Join(t.TempDir(), "s")
	cfg := config{listen: serve.Config{Listen: socket}, interval: time.Second, scopes: []string{"/subscriptions/0B1F6471-1bf0-4dda-aec3-cb9272f09590/"}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := run(ctx, cfg, newFakeCloud(up("0", "10.0.0.4")).azure(), slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { conn.Close(); cancel(); running.Wait() }()
	ask := func(locator string) (*resolverv1.WatchResponse, error) {
		stream, err := resolverv1.NewResolverClient(conn).Watch(ctx, &resolverv1.WatchRequest{Locator: locator}, grpc.WaitForReady(true))
		require.NoError(t, err)
		return stream.Recv()
	}
	answer, err := ask(webID)
	require.NoError(t, err)
	require.Equal(t, "10.0.0.4 ready", text(answer.Endpoints))
	_, err = ask("web")
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = ask("/subscriptions/1" + webID[len("/subscriptions/0"):])
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, "--scope")
}

func TestReadiness(t *testing.T) {
	for want, instances := range map[string][]instance{
		"ready": {
			{provisioning: "Succeeded", power: "PowerState/running"},
			{provisioning: "Updating", power: "PowerState/running"},
			{provisioning: "Failed", power: "PowerState/running", health: "HealthState/healthy"},
		},
		"not_ready": {
			{provisioning: "Creating", power: "PowerState/running"},
			{provisioning: "Failed", power: "PowerState/running"},
			{provisioning: "Succeeded", power: "PowerState/deallocated"},
			{provisioning: "Succeeded", power: "PowerState/stopping"},
			{provisioning: "Deleting", power: "PowerState/stopped"},
			{provisioning: "Succeeded"},
			{provisioning: "Succeeded", power: "PowerState/running", health: "HealthState/unhealthy"},
			{provisioning: "Succeeded", power: "PowerState/running", health: "HealthState/initializing"},
			{provisioning: "Succeeded", power: "PowerState/deallocated", health: "HealthState/healthy"},
		},
		"draining": {{provisioning: "Deleting", power: "PowerState/running", health: "HealthState/healthy"}},
	} {
		for _, i := range instances {
			i.id, i.addresses = "0", []string{"10.0.0.4"}
			require.Equal(t, "10.0.0.4 "+want, readOnce(t, false, i), "%+v", i)
		}
	}
}

// readOnce reads a scale set of one instance.
func readOnce(t *testing.T, all bool, i instance) string {
	t.Helper()
	a := newFakeCloud(i).azure()
	a.all = all
	set, err := parseLocator(webID)
	require.NoError(t, err)
	r, err := a.reader(set)
	require.NoError(t, err)
	endpoints, err := r.read(t.Context())
	require.NoError(t, err)
	return text(endpoints)
}

func TestAddresses(t *testing.T) {
	vm := up("0", "10.0.0.4", "10.0.0.5", "fd00::4", "fd00::5", "", "nonsense")
	require.Equal(t, "10.0.0.4 ready, fd00::4 ready", readOnce(t, false, vm))
	require.Equal(t, "10.0.0.4 ready, 10.0.0.5 ready, fd00::4 ready, fd00::5 ready", readOnce(t, true, vm))
	second := &armnetwork.InterfaceIPConfiguration{Properties: &armnetwork.InterfaceIPConfigurationPropertiesFormat{PrivateIPAddress: new("10.0.0.4")}}
	first := &armnetwork.InterfaceIPConfiguration{Properties: &armnetwork.InterfaceIPConfigurationPropertiesFormat{PrivateIPAddress: new("10.0.0.9"), Primary: new(true)}}
	require.Equal(t, "10.0.0.9", addresses([]*armnetwork.InterfaceIPConfiguration{second, {}, first}, false)[0].String(), "the primary one wins")
	states := map[string]resolverv1.Readiness{"vm": resolverv1.Readiness_READINESS_READY}
	nic := func(vm string, primary bool) *armnetwork.Interface {
		return &armnetwork.Interface{Properties: &armnetwork.InterfacePropertiesFormat{Primary: &primary, VirtualMachine: &armnetwork.SubResource{ID: &vm},
			IPConfigurations: []*armnetwork.InterfaceIPConfiguration{first}}}
	}
	require.Empty(t, endpoints(states, []*armnetwork.Interface{{}, nic("gone", true), nic("vm", false)}, false))
	require.Len(t, endpoints(states, []*armnetwork.Interface{nic("vm", false), nic("vm", true)}, true), 1, "an address is listed once")
}

func TestFlagsAreChecked(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	require.ErrorContains(t, run(t.Context(), config{}, azure{}, log), "--interval")
	require.ErrorContains(t, run(t.Context(), config{interval: time.Second, scopes: []string{"edge"}}, azure{}, log), "/subscriptions/")
	require.ErrorContains(t, run(t.Context(), config{interval: time.Second, listen: serve.Config{Listen: ":0"}}, azure{}, log), "--tls-cert-file")
	require.ErrorContains(t, start(t.Context(), config{cloud: "mine"}, log), "none of public")
	root := newRoot()
	root.SetArgs(nil)
	require.ErrorContains(t, root.ExecuteContext(t.Context()), "listen")
}
