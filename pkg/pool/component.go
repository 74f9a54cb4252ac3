package pool

import (
	"cmp"
	"slices"
	"strings"
)

// Component names a Service across clusters: namespaces and Services of two clusters may bear the same names. The zero value is
// that of a Service whose cluster has no name.
type Component struct{ Cluster, Namespace, Service string }

// String is cluster/namespace/Service.
func (c Component) String() string { return c.Cluster + "/" + c.Namespace + "/" + c.Service }

// Compare orders by cluster, namespace and Service.
func (c Component) Compare(o Component) int {
	return cmp.Or(strings.Compare(c.Cluster, o.Cluster), strings.Compare(c.Namespace, o.Namespace), strings.Compare(c.Service, o.Service))
}

// component is what the member is part of in that pool: a Service of another cluster, or the pool's own. Where this cluster has
// no name, nothing has.
func (v view) component() Component {
	own := v.pool.spec.component
	if own == (Component{}) {
		return own
	}
	return cmp.Or(v.origin, own)
}

// withComponent adds one that is not among them yet. They are sorted, and few.
func withComponent(all []Component, c Component) []Component {
	i, known := slices.BinarySearchFunc(all, c, Component.Compare)
	if c == (Component{}) || known {
		return all
	}
	return slices.Insert(all, i, c)
}
