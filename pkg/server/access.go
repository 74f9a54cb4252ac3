package server

import (
	"fmt"

	"google.golang.org/grpc/health/grpc_health_v1"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
)

// rule says whether a caller may use an RPC at all.
type rule func(auth.Caller) error

// access has the rule of every RPC; one that is not in it is refused.
var access = map[string]rule{
	// The handler compares the caller with the workload that it names.
	targetpoolv1.TargetPool_Watch_FullMethodName: anybody,
	// Load balancers. A source address tells nothing of a pod that is no member.
	targetpoolv1.TargetFeed_Watch_FullMethodName: anybody,
	// What is reserved is registered.
	targetpoolv1.Reservation_Reserve_FullMethodName: anybody,
	// As in Meridio 1.x.
	nspv1.TargetRegistry_Register_FullMethodName:             anybody,
	nspv1.TargetRegistry_Unregister_FullMethodName:           anybody,
	nspv1.TargetRegistry_Watch_FullMethodName:                anybody,
	nspv1.ConfigurationManager_WatchTrench_FullMethodName:    anybody,
	nspv1.ConfigurationManager_WatchConduit_FullMethodName:   anybody,
	nspv1.ConfigurationManager_WatchStream_FullMethodName:    anybody,
	nspv1.ConfigurationManager_WatchFlow_FullMethodName:      anybody,
	nspv1.ConfigurationManager_WatchVip_FullMethodName:       anybody,
	nspv1.ConfigurationManager_WatchAttractor_FullMethodName: anybody,
	nspv1.ConfigurationManager_WatchGateway_FullMethodName:   anybody,
	// Trench processes say for whom they call, so they have to prove what they are.
	targetpoolv1.Relay_Watch_FullMethodName:      trenchProcess,
	targetpoolv1.Relay_Position_FullMethodName:   trenchProcess,
	targetpoolv1.Relay_Register_FullMethodName:   trenchProcess,
	targetpoolv1.Relay_Unregister_FullMethodName: trenchProcess,
	targetpoolv1.Relay_Restore_FullMethodName:    trenchProcess,
	// People, through kubectl port-forward or exec: the answers show everything.
	targetpoolv1.Inspector_ListPools_FullMethodName:   local,
	targetpoolv1.Inspector_ListTargets_FullMethodName: local,
	// Probes.
	grpc_health_v1.Health_Check_FullMethodName: anybody,
	grpc_health_v1.Health_List_FullMethodName:  anybody,
	grpc_health_v1.Health_Watch_FullMethodName: anybody,
}

func anybody(auth.Caller) error { return nil }

func local(c auth.Caller) error {
	if c.Mode == auth.None || c.Local() {
		return nil
	}
	return fmt.Errorf("%w: only calls from the NSP's own pod may look into it; use kubectl port-forward", auth.ErrDenied)
}

func trenchProcess(c auth.Caller) error {
	if c.Mode == auth.None || c.TrenchProcess {
		return nil
	}
	return fmt.Errorf("%w: only trench processes may relay; see --trench-process-accounts", auth.ErrDenied)
}

// admit applies the table.
func admit(method string, c auth.Caller) error {
	r, known := access[method]
	if !known {
		return fmt.Errorf("%w: nobody may call %s", auth.ErrDenied, method)
	}
	return r(c)
}
