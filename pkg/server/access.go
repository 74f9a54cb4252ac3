package server

import (
	"google.golang.org/grpc/health/grpc_health_v1"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// rule says whether a caller may use an RPC at all.
type rule func(*Config, auth.Caller) error

// access has the rule of every RPC; one that is not in it is refused. Where it depends on what is asked for too, the handler
// asks the function named here as well.
var access = map[string]rule{
	// A workload is told its own: speaksFor.
	targetpoolv1.TargetPool_Watch_FullMethodName: proven,
	// Load balancers, each its own conduit: mayFeed.
	targetpoolv1.TargetFeed_Watch_FullMethodName: proven,
	// Targets register themselves: mayRegister. What is reserved is registered.
	targetpoolv1.Reservation_Reserve_FullMethodName: proven,
	nspv1.TargetRegistry_Register_FullMethodName:    proven,
	nspv1.TargetRegistry_Unregister_FullMethodName:  proven,
	// Whoever is at home here or has a grant for that: mayList.
	nspv1.TargetRegistry_Watch_FullMethodName: proven,
	// Whoever is at home here or has any grant. In a namespace process ExternalTargets, each of its trenches: configuration.
	nspv1.ConfigurationManager_WatchTrench_FullMethodName:    resident,
	nspv1.ConfigurationManager_WatchConduit_FullMethodName:   resident,
	nspv1.ConfigurationManager_WatchStream_FullMethodName:    resident,
	nspv1.ConfigurationManager_WatchFlow_FullMethodName:      resident,
	nspv1.ConfigurationManager_WatchVip_FullMethodName:       resident,
	nspv1.ConfigurationManager_WatchAttractor_FullMethodName: resident,
	nspv1.ConfigurationManager_WatchGateway_FullMethodName:   resident,
	// Trench processes say for whom they call, so they have to prove what they are, each for its own: mayRelay.
	targetpoolv1.Relay_Watch_FullMethodName:      trenchProcess,
	targetpoolv1.Relay_Position_FullMethodName:   trenchProcess,
	targetpoolv1.Relay_Register_FullMethodName:   trenchProcess,
	targetpoolv1.Relay_Unregister_FullMethodName: trenchProcess,
	targetpoolv1.Relay_Restore_FullMethodName:    trenchProcess,
	// People, through kubectl port-forward or exec, and accounts named for that: the answers show everything.
	targetpoolv1.Inspector_ListPools_FullMethodName:   inspecting,
	targetpoolv1.Inspector_ListTargets_FullMethodName: inspecting,
	targetpoolv1.Inspector_Describe_FullMethodName:    inspecting,
	// Probes.
	grpc_health_v1.Health_Check_FullMethodName: anybody,
	grpc_health_v1.Health_List_FullMethodName:  anybody,
	grpc_health_v1.Health_Watch_FullMethodName: anybody,
}

func anybody(*Config, auth.Caller) error { return nil }

// proven is for whoever has proven what the mode asks for.
func proven(_ *Config, c auth.Caller) error { return c.Unproven }

// resident is for callers of the NSP's own namespace, and of others that were let in.
func resident(cfg *Config, c auth.Caller) error {
	if c.Unproven != nil || !c.Accountable() {
		return c.Unproven
	}
	if c.Target.UID != "" {
		return cfg.permitTarget(c.Target, stream.Key{Namespace: cfg.Namespace})
	}
	return cfg.permit(c.Account, stream.Key{Namespace: cfg.Namespace})
}

func inspecting(_ *Config, c auth.Caller) error {
	switch {
	case c.Mode == auth.None || c.Local() || c.Inspector:
		return nil
	case c.Unproven != nil:
		return c.Unproven
	}
	return auth.Deny(auth.NotLocal,
		"only calls from the NSP's own pod, as through kubectl port-forward, and accounts of --inspector-accounts may look into it")
}

func trenchProcess(_ *Config, c auth.Caller) error {
	switch {
	case c.Mode == auth.None || c.TrenchProcess:
		return nil
	case c.Unproven != nil:
		return c.Unproven
	}
	return auth.Deny(auth.NoRole, "only trench processes may relay; see --trench-process-accounts")
}

// admit applies the table.
func admit(cfg *Config, method string, c auth.Caller) error {
	r, known := access[method]
	if !known {
		return auth.Deny(auth.UnknownMethod, "nobody may call %s", method)
	}
	return r(cfg, c)
}
