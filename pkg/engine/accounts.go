package engine

import (
	"maps"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// accounts are the ServiceAccounts that pods are proven to run as. The account of a pod never changes, so what was proven once stays
// true, and it does not matter whether the proof or the pod's slice comes first.
type accounts map[pool.MemberKey]string

// maxAccounts is how many are kept of pods that are no members before those are looked through: a proof may come before the slice,
// and thousands of pods may come and go.
const maxAccounts = 20_000

// identify finds the pod by its UID, or by a name or address that is one pod's.
func (s *state) identify(ev identified) {
	k := pool.MemberKey{Namespace: ev.namespace, UID: ev.workload.PodUID}
	if k.UID == "" {
		m := s.memberOf(ev.workload)
		if m == nil || m.Key.Namespace != ev.namespace {
			return
		}
		k = m.Key
	}
	s.setAccount(k, ev.account)
}

func (s *state) setAccount(k pool.MemberKey, account string) {
	if s.accounts[k] == account {
		return
	}
	if len(s.accounts) >= maxAccounts+2*len(s.members) {
		s.forgetAccounts()
	}
	s.accounts[k] = account
	s.table.SetAccount(k, account)
	s.markAll(s.byPod[k.UID])
}

// forgetAccounts keeps those of members; the others prove themselves again when their watches are opened again.
func (s *state) forgetAccounts() {
	maps.DeleteFunc(s.accounts, func(k pool.MemberKey, _ string) bool {
		gone := s.member(k.UID) == nil
		if gone {
			s.table.SetAccount(k, "")
		}
		return gone
	})
}

// recall takes up what was proven before a restart: the pods are still there, and their sidecars come back one by one.
func (s *state) recall(m registry.Memory) {
	ns, _, named := strings.Cut(m.PodName, "/")
	if named && m.PodUID != "" && m.Account != "" {
		s.setAccount(pool.MemberKey{Namespace: ns, UID: m.PodUID}, m.Account)
	}
}

// account is what the pod of a registration is proven to run as.
func (s *state) account(m registry.Memory) string {
	ns, _, _ := strings.Cut(m.PodName, "/")
	return s.accounts[pool.MemberKey{Namespace: ns, UID: m.PodUID}]
}
