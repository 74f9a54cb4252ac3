package nsp

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/kube"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// identitiesDocument keeps the identities of ExternalTargets for the next start.
const identitiesDocument = "external-target-identities"

// makeIdentities makes what knows the identities of ExternalTargets, before the transport, which lets them in.
func (n *namespace) makeIdentities() {
	n.identities = auth.NewTargets(auth.TargetsConfig{
		Save: func(data []byte) { n.registry.SaveDocument(identitiesDocument, data) },
		Want: func(c map[auth.ConfigMap]bool) { n.authorities.Want(c) },
		Log:  n.log,
	})
	if n.cfg.namespaceMode() == auth.ByMTLS { // in the other modes who is let in may be more than one of them
		n.accepted = n.identities
	}
}

// openIdentities takes up what was stored of these namespaces, and what it takes to learn more.
func (n *namespace) openIdentities(namespaces []string) {
	if n.identities == nil { // where there is no transport
		n.makeIdentities()
	}
	n.authorities = kube.NewAuthorities(n.client, n.identities.SetAuthority, n.log)
	if stored := n.saved.Documents[identitiesDocument]; len(stored) > 0 {
		if err := n.identities.Restore(stored, namespaces); err != nil {
			n.log.Warn("who ExternalTargets are is learned anew from the cluster", "error", err)
		}
	}
	n.metrics.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nsp_external_target_shared_identities",
		Help: "Identities that several ExternalTargets claim, so that they prove none of them.",
	}, func() float64 { return float64(n.identities.Shared()) }))
}

// permittedTarget is server.Config.PermittedTarget.
func (n *namespace) permittedTarget(t auth.Target, k stream.Key) error {
	if n.engine.PermittedTarget(t.Namespace, t.Name, k) {
		return nil
	}
	return auth.Deny(auth.NoGrant, "no TargetGrant lets ExternalTarget %s join %s: it takes one whose externalTargets name it", t, k)
}
