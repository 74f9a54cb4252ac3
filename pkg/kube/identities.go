package kube

import (
	"cmp"
	"maps"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// identities are what the ExternalTargets of one namespace prove, for somebody who may be nil. They are guarded as targets are.
type identities struct {
	namespace string
	to        *auth.Targets
	all       map[auth.Target]auth.TargetIdentity
	changed   bool
	told      bool
}

// set replaces the identity of the target of that name; the zero one takes it back.
func (i *identities) set(t pool.Target, identity auth.TargetIdentity) {
	if i.all == nil {
		i.all = make(map[auth.Target]auth.TargetIdentity)
	}
	key := auth.Target{Namespace: t.Namespace, Name: t.Name, UID: t.UID}
	if before, known := i.all[key]; known && before == identity {
		return
	}
	before := len(i.all)
	maps.DeleteFunc(i.all, func(k auth.Target, _ auth.TargetIdentity) bool { return k.Name == t.Name })
	if identity != (auth.TargetIdentity{}) {
		i.all[key] = identity
	}
	i.changed = i.changed || len(i.all) != before || identity != (auth.TargetIdentity{})
}

// tell says what changed since the last time, and the first time in any case.
func (i *identities) tell() {
	if i.to != nil && (i.changed || !i.told) {
		i.to.Replace(i.namespace, i.all)
	}
	i.changed, i.told = false, true
}

// drop forgets all.
func (i *identities) drop() {
	if i.to != nil {
		i.to.Replace(i.namespace, nil)
	}
}

// identityOf is what a resource proves; zero for nothing.
func identityOf(x *v1alpha1.ExternalTarget) auth.TargetIdentity {
	if x.Spec.Identity == nil {
		return auth.TargetIdentity{}
	}
	if by := x.Spec.Identity.X509; by != nil {
		return auth.TargetIdentity{Subject: by.Subject, ConfigMap: string(by.CAConfigMap.Name), Key: cmp.Or(by.CAConfigMap.Key, "ca.crt")}
	}
	return auth.TargetIdentity{SPIFFEID: x.Spec.Identity.SPIFFEID}
}
