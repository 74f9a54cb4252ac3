package nsp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// targetNamespaces are those that are watched for Services: the NSP's own, those that are configured, and where that says "*" those
// that grants name. One that was named stays: its Services shall say that they are not permitted any more.
type targetNamespaces struct {
	granted bool
	set     func([]string)

	mu   sync.Mutex
	want map[string]bool
}

// newTargetNamespaces begins with the grants that were stored.
func newTargetNamespaces(own string, configured []string, stored *pool.Grants) *targetNamespaces {
	t := &targetNamespaces{granted: slices.Contains(configured, pool.Any), want: map[string]bool{own: true}}
	for _, ns := range configured {
		if ns != pool.Any {
			t.want[ns] = true
		}
	}
	t.add(stored.Namespaces())
	return t
}

func (t *targetNamespaces) names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.want))
}

// add takes in the namespaces that grants name.
func (t *targetNamespaces) add(granted []string) {
	if !t.granted {
		return
	}
	t.mu.Lock()
	for _, ns := range granted {
		t.want[ns] = true
	}
	t.mu.Unlock()
	if t.set != nil {
		t.set(t.names())
	}
}

func validateTargetNamespaces(names []string) error {
	var errs []error
	for _, ns := range names {
		if ns != pool.Any && len(validation.IsDNS1123Label(ns)) > 0 {
			errs = append(errs, fmt.Errorf("--target-namespaces names %.63q: write names of namespaces, or *", ns))
		}
	}
	return errors.Join(errs...)
}

// permitted says whether an account of another namespace may have to do with a stream.
func (n *namespace) permitted(a auth.ServiceAccount, k stream.Key) error {
	if n.engine.Permitted(a.Namespace, a.Name, k) {
		return nil
	}
	return auth.Deny(auth.NoGrant, "no TargetGrant lets %s join %s", a, k)
}
