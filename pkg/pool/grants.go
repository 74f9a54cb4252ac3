package pool

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Any stands for all names in a Grant.
const Any = "*"

// Grant permits workloads of one namespace to join streams of one trench.
type Grant struct {
	Namespace string
	// Accounts permits the pods that run as one of these ServiceAccounts, Externals the ExternalTargets of these names; Any permits
	// all ExternalTargets and also addresses behind which there is no object. With neither, every pod of the namespace is permitted
	// and nothing else.
	Accounts, Externals []string
	// Trench, and where they are not empty Conduit and Stream, are what may be joined.
	Trench, Conduit, Stream string
}

// Permission is what a namespace may do in a stream. The zero value is nothing.
type Permission struct {
	// Pods permits all pods, Accounts those that are proven to run as one of these ServiceAccounts; sorted.
	Pods     bool
	Accounts []string
	// Externals permits all members without a pod, Targets the ExternalTargets of these names; sorted.
	Externals bool
	Targets   []string
}

// Granted tells whether anything is permitted.
func (p Permission) Granted() bool {
	return p.Pods || len(p.Accounts) > 0 || p.Externals || len(p.Targets) > 0
}

// Account tells whether pods that run as the account are permitted; the empty one is not known.
func (p Permission) Account(name string) bool {
	_, listed := slices.BinarySearch(p.Accounts, name)
	return p.Pods || listed && name != ""
}

// Target tells whether the ExternalTarget of that name is permitted.
func (p Permission) Target(name string) bool {
	_, listed := slices.BinarySearch(p.Targets, name)
	return p.Externals || listed
}

func (p Permission) equal(o Permission) bool {
	return p.Pods == o.Pods && slices.Equal(p.Accounts, o.Accounts) && p.readsLike(o)
}

// readsLike is whether the same endpoints are members by both.
func (p Permission) readsLike(o Permission) bool {
	return p.Externals == o.Externals && slices.Equal(p.Targets, o.Targets)
}

// Grants are all grants of one NSP. They are immutable; nil is none.
type Grants struct {
	all map[string][]Grant // by namespace
}

// NewGrants makes Grants, which do not depend on the order.
func NewGrants(all []Grant) *Grants {
	g := &Grants{all: make(map[string][]Grant)}
	for _, one := range all {
		g.all[one.Namespace] = append(g.all[one.Namespace], one)
	}
	return g
}

// Namespaces are those that some grant names, sorted.
func (g *Grants) Namespaces() []string {
	if g == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(g.all))
}

// Permission is what a namespace may do in a stream. Names that the key leaves empty stand for any: then it is what the namespace
// may do in at least one.
func (g *Grants) Permission(namespace string, k stream.Key) Permission {
	var p Permission
	if g == nil {
		return p
	}
	for _, one := range g.all[namespace] {
		if one.covers(k) {
			p.add(one)
		}
	}
	slices.Sort(p.Accounts)
	p.Accounts = slices.Compact(p.Accounts)
	slices.Sort(p.Targets)
	p.Targets = slices.Compact(p.Targets)
	return p
}

func (g Grant) covers(k stream.Key) bool {
	matches := func(granted, asked string) bool { return granted == "" || asked == "" || granted == asked }
	return (k.Trench == "" || g.Trench == k.Trench) && matches(g.Conduit, k.Conduit) && matches(g.Stream, k.Name)
}

func (p *Permission) add(g Grant) {
	p.Pods = p.Pods || len(g.Accounts) == 0 && len(g.Externals) == 0 || slices.Contains(g.Accounts, Any)
	p.Externals = p.Externals || slices.Contains(g.Externals, Any)
	p.Accounts = append(p.Accounts, g.Accounts...)
	p.Targets = append(p.Targets, g.Externals...)
}

// accountOf is the ServiceAccount that a member is proven to run as, empty where that is not known.
func (t *Table) accountOf(k MemberKey) string { return t.accounts[k] }

// SetAccount says as which ServiceAccount a pod is proven to run; empty takes it back. It may come before the pod is listed.
func (t *Table) SetAccount(k MemberKey, account string) {
	if t.accounts[k] == account {
		return
	}
	t.accounts[k] = account
	if account == "" {
		delete(t.accounts, k)
	}
	if m := t.members[k]; m != nil {
		t.newAccounts[m] = struct{}{}
	}
}

// compareGrants is an order of grants for those who list them.
func compareGrants(a, b Grant) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Trench, b.Trench), cmp.Compare(a.Conduit, b.Conduit),
		cmp.Compare(a.Stream, b.Stream), slices.Compare(a.Accounts, b.Accounts), slices.Compare(a.Externals, b.Externals))
}

// All are the grants, in an order that does not depend on theirs.
func (g *Grants) All() []Grant {
	var all []Grant
	if g != nil {
		for _, ns := range g.Namespaces() {
			all = append(all, g.all[ns]...)
		}
	}
	slices.SortFunc(all, compareGrants)
	return all
}
