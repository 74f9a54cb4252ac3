package nsp

import (
	"context"

	"github.com/nordix/meridio-nsp/pkg/relay"
	"github.com/nordix/meridio-nsp/pkg/server"
)

// openRelay is openRegistry where a namespace process has the registry.
func (t *trench) openRelay(ctx context.Context) error {
	creds, err := t.cfg.credentials(t.transport, t.cfg.transportName())
	if err != nil {
		return err
	}
	if err := t.openStore(ctx); err != nil {
		return err
	}
	t.configuration.AwaitLimits()
	t.relay = relay.New(relay.Config{
		Address: t.cfg.NamespaceNSP, Credentials: creds, PerRPC: t.cfg.perRPC(t.cfg.transportName(), t.log),
		Namespace: t.cfg.Namespace, Trench: t.cfg.trenchName(), Store: t.store, Timeout: t.cfg.EntryTimeout, Limits: t.configuration.Limit, Log: t.log,
	})
	t.metrics.registry.MustRegister(t.relay)
	t.saved, err = t.relay.Load(ctx)
	if err != nil {
		return err
	}
	t.documents = t.relay
	t.keepTrying(t.relay)
	return nil
}

// openOwn is openRegistry for a trench process that stands alone. What was mirrored last is its own from here on.
func (t *trench) openOwn(ctx context.Context) error {
	if err := t.openRegistry(ctx); err != nil {
		return err
	}
	if _, mirrored := t.saved.Documents[relay.Document]; mirrored {
		t.registry.SaveDocument(relay.Document, nil)
		t.registry.SaveDocument(relay.LimitsDocument, nil)
		t.log.InfoContext(ctx, "the registrations that were relayed last are this process's own now", "registrations", len(t.saved.Entries))
	}
	t.documents = t.registry
	return nil
}

// targets are what nsp.v1.TargetRegistry is served from.
func (t *trench) targets() (server.Targets, server.Registry) {
	if t.relay != nil {
		return t.relay, t.relay // which may have calls wait for the namespace process
	}
	crowd := server.NewCrowd(t.engine, t.registry)
	return crowd, crowd
}
