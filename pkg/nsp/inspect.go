package nsp

import "github.com/nordix/meridio-nsp/pkg/server"

// namespaces are the watched ones, for people who look in.
func (n *namespace) namespaces() []server.NamespaceState {
	var out []server.NamespaceState
	for _, s := range n.source.Namespaces() {
		out = append(out, server.NamespaceState{Name: s.Name, Synced: s.Synced, Age: s.Age, Err: s.Err})
	}
	return out
}
