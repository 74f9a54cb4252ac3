package nsp

import (
	"context"
	"log/slog"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/kube"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/server"
)

// RunNamespace runs a namespace process until ctx ends. The configuration must be valid.
func RunNamespace(ctx context.Context, cfg NamespaceConfig, log *slog.Logger) error {
	n := &namespace{process: newProcess(cfg.ProcessConfig, log), cfg: cfg}
	defer n.close()
	n.makeIdentities()
	if err := n.take(ctx, n.connect, n.openTransport, n.openRegistry, n.assemble, n.listen); err != nil {
		return err
	}
	log.InfoContext(ctx, "serving", "version", Version, "namespace", cfg.Namespace, "address", n.grpcListener.Addr().String(),
		"transport", cfg.transportName(), "authorisation", cfg.namespaceMode(), "registrations", len(n.saved.Entries))
	n.server.Ready()
	return runStages(ctx, n.stages(
		component{"cluster", n.source.Run},
		component{"configuration", n.configs.Run},
		component{"status", n.status.Run},
		component{"grants", n.grants.Run},
		component{"identities", n.authorities.Run},
		component{"policies", n.policies.Run},
	)...)
}

// namespace is a namespace process while it is put together.
type namespace struct {
	*process
	cfg NamespaceConfig

	source   *kube.Source
	configs  *kube.Configs
	status   *kube.Status
	grants   *kube.Grants
	policies *kube.Policies
	// identities are those of ExternalTargets, authorities the ConfigMaps that these need.
	identities  *auth.Targets
	authorities *kube.Authorities
}

func (n *namespace) assemble(context.Context) error {
	post := poster{&n.sink}
	n.openTokens(n.cfg.namespaceMode(), n.registry.SaveDocument)
	stored := n.saved.Documents[kube.GrantsDocument]
	watched := newTargetNamespaces(n.cfg.Namespace, n.cfg.TargetNamespaces, kube.StoredGrants(stored))
	n.openIdentities(watched.names())
	n.source = kube.NewSource(kube.SourceConfig{Client: n.client, Dynamic: n.dynamic, Sink: post, Namespaces: watched.names(), Identities: n.identities, Log: n.log})
	watched.set = func(names []string) {
		n.source.SetNamespaces(names)
		n.status.SetNamespaces(names)
	}
	n.grants = kube.NewGrants(kube.GrantsConfig{
		Client: n.dynamic, Sink: post, Namespace: n.cfg.Namespace, Stored: stored, Save: n.registry.SaveDocument,
		Changed: watched.add, Log: n.log,
	})
	n.policies = kube.NewPolicies(kube.PoliciesConfig{
		Client: n.dynamic, Sink: post, Namespace: n.cfg.Namespace, Stored: n.saved.Documents[kube.PoliciesDocument],
		Save: n.registry.SaveDocument, Log: n.log,
	})
	configurations := &server.Configurations{}
	n.configs = kube.NewConfigs(kube.ConfigsConfig{
		Client: n.client, Sink: post, Namespace: n.cfg.Namespace, Save: n.registry.SaveDocument, Log: n.log,
		Read: configurations.Set,
	})
	n.status = kube.NewStatus(kube.StatusConfig{
		Client: n.client, Namespaces: watched.names(), Log: n.log,
	})
	n.makeEngine(engine.Config{
		Namespaces:    watched.names(),
		Grants:        kube.StoredGrants(stored),
		GrantsPending: true,
		AccessPending: true,

		Cluster:      n.cfg.ClusterName,
		Assignment:   pool.Assignment(n.cfg.Assignment),
		ReadinessOff: !n.cfg.ReadinessPush,
		WantConfig:   n.configs.Want,
		DropConfig:   n.configs.Drop,
		Pools:        n.status.Pools,
		Limits:       n.registry.SetLimits,
		Prefer:       n.registry.Prefer,
	})
	for name, document := range n.saved.Documents {
		if trench, ok := kube.TrenchOf(name); ok {
			if err := n.configs.Preload(trench, document); err != nil {
				n.log.Warn("a stored configuration is unreadable; the cluster's counts", "trench", trench, "error", err)
			}
		}
	}
	n.metrics.registry.MustRegister(n.source, n.configs, n.status, n.policies)
	mode := n.cfg.namespaceMode()
	accounts, err := parseAccounts("--trench-process-accounts", n.cfg.TrenchProcessAccounts, n.cfg.Namespace)
	if err != nil {
		return err
	}
	crowd := server.NewCrowd(n.engine, n.registry)
	return n.makeServer(server.Config{
		Cluster: n.cfg.ClusterName, Engine: n.engine, Targets: crowd, Registry: crowd, Relay: n.registry, Reservations: n.registry,
		Namespaces: n.namespaces, TrenchProcesses: accounts, Auth: mode, Permitted: n.permitted,
		Configurations: configurations, ExternalTargets: n.identities, PermittedTarget: n.permittedTarget,
	})
}
