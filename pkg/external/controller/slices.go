package controller

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
)

// maxEndpoints is how many endpoints a slice has at most, as many as in those of Kubernetes' own controller.
const maxEndpoints = 100

// placed is an endpoint and the kind of slice that it belongs into.
type placed struct {
	group
	ports    []discoveryv1.EndpointPort
	endpoint discoveryv1.Endpoint
}

// group is what all endpoints of a slice have in common.
type group struct {
	family discoveryv1.AddressType
	key    string // portsText of the ports
}

// identity is what makes an endpoint the same one.
func identity(e discoveryv1.Endpoint) string {
	if e.TargetRef == nil || len(e.Addresses) != 1 {
		return ""
	}
	return string(e.TargetRef.UID) + " " + e.Addresses[0]
}

// place lists the endpoints that the Service has by the targets that it selects.
func place(service *corev1.Service, targets []v1alpha1.ExternalTarget) []placed {
	var all []placed
	for i := range targets {
		t := &targets[i]
		if !t.DeletionTimestamp.IsZero() || !selects(service, t.Labels) {
			continue
		}
		ports := resolvePorts(service, t.Spec.Ports)
		key := portsText(ports)
		for _, a := range t.Status.Addresses {
			family, ok := familyOf(a.Address)
			if ok && serves(service, family) {
				all = append(all, placed{group{family, key}, ports, endpointOf(service, t, a)})
			}
		}
	}
	return all
}

func familyOf(address string) (discoveryv1.AddressType, bool) {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return "", false
	}
	if addr.Is4() {
		return discoveryv1.AddressTypeIPv4, true
	}
	return discoveryv1.AddressTypeIPv6, true
}

// serves is whether the Service has that family. Without a word it has both.
func serves(service *corev1.Service, family discoveryv1.AddressType) bool {
	return len(service.Spec.IPFamilies) == 0 || slices.Contains(service.Spec.IPFamilies, corev1.IPFamily(family))
}

func endpointOf(service *corev1.Service, t *v1alpha1.ExternalTarget, a v1alpha1.AddressStatus) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{a.Address},
		Conditions: discoveryv1.EndpointConditions{
			Ready:       new(a.Ready && !a.Terminating || service.Spec.PublishNotReadyAddresses),
			Serving:     new(a.Serving),
			Terminating: new(a.Terminating),
		},
		TargetRef: &corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "ExternalTarget", Namespace: t.Namespace, Name: t.Name, UID: t.UID},
	}
}

// resolvePorts finds the Service's ports at the target. A named port that the target has not is left out, as for pods.
func resolvePorts(service *corev1.Service, named []v1alpha1.TargetPort) []discoveryv1.EndpointPort {
	ports := []discoveryv1.EndpointPort{}
	for _, p := range service.Spec.Ports {
		number := p.Port
		switch {
		case p.TargetPort.Type == intstr.String:
			i := slices.IndexFunc(named, func(n v1alpha1.TargetPort) bool {
				return n.Name == p.TargetPort.StrVal && cmp.Or(n.Protocol, corev1.ProtocolTCP) == cmp.Or(p.Protocol, corev1.ProtocolTCP)
			})
			if i < 0 {
				continue
			}
			number = int32(named[i].Port)
		case p.TargetPort.IntVal != 0:
			number = p.TargetPort.IntVal
		}
		ports = append(ports, discoveryv1.EndpointPort{Name: new(p.Name), Port: &number,
			Protocol: new(cmp.Or(p.Protocol, corev1.ProtocolTCP)), AppProtocol: p.AppProtocol})
	}
	return ports
}

// portsText is the same for the same ports, in the order of their names.
func portsText(ports []discoveryv1.EndpointPort) string {
	var parts []string
	for _, p := range ports {
		parts = append(parts, fmt.Sprintf("%s/%s/%d/%s", deref(p.Name), deref(p.Protocol), deref(p.Port), deref(p.AppProtocol)))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

func deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// changes are what is to be written.
type changes struct {
	create, update, remove []*discoveryv1.EndpointSlice
}

// plan compares what there is with what there shall be. An endpoint stays in its slice; new ones go where there is room; slices
// without any are removed.
func plan(service *corev1.Service, wanted []placed, existing []discoveryv1.EndpointSlice) changes {
	byGroup := make(map[group][]placed)
	for _, w := range wanted {
		byGroup[w.group] = append(byGroup[w.group], w)
	}
	var p changes
	taken := make(map[string]bool) // names
	have := make(map[group][]*discoveryv1.EndpointSlice)
	for i := range existing {
		s := &existing[i]
		taken[s.Name] = true
		g := group{s.AddressType, portsText(s.Ports)}
		if byGroup[g] == nil || !s.DeletionTimestamp.IsZero() || !ownedBy(s, service) {
			p.remove = append(p.remove, s)
			continue
		}
		have[g] = append(have[g], s)
	}
	for _, g := range slices.SortedFunc(maps.Keys(byGroup), compareGroups) {
		p.fill(service, g, byGroup[g], have[g], taken)
	}
	return p
}

func compareGroups(a, b group) int {
	return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.key, b.key))
}

func ownedBy(s *discoveryv1.EndpointSlice, service *corev1.Service) bool {
	owner := metav1.GetControllerOf(s)
	return owner != nil && owner.UID == service.UID
}

// fill distributes the endpoints of one group.
func (p *changes) fill(service *corev1.Service, g group, wanted []placed, have []*discoveryv1.EndpointSlice, taken map[string]bool) {
	rest := make(map[string]discoveryv1.Endpoint, len(wanted))
	for _, w := range wanted {
		rest[identity(w.endpoint)] = w.endpoint
	}
	slices.SortFunc(have, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	kept := keep(have, rest)
	left := slices.Sorted(maps.Keys(rest))
	next := func(room int) (some []discoveryv1.Endpoint) {
		n := min(room, len(left))
		for _, key := range left[:n] {
			some = append(some, rest[key])
		}
		left = left[n:]
		return some
	}
	for i, s := range have {
		p.settle(service, s, append(kept[i], next(maxEndpoints-len(kept[i]))...))
	}
	for len(left) > 0 {
		slice := &discoveryv1.EndpointSlice{AddressType: g.family, Ports: wanted[0].ports}
		slice.Namespace, slice.Name = service.Namespace, freeName(service, g, taken)
		dress(slice, service, next(maxEndpoints))
		p.create = append(p.create, slice)
	}
}

// keep leaves in each slice what shall still be there, as it is now, and takes it out of the rest.
func keep(have []*discoveryv1.EndpointSlice, rest map[string]discoveryv1.Endpoint) [][]discoveryv1.Endpoint {
	kept := make([][]discoveryv1.Endpoint, len(have))
	for i, s := range have {
		for _, e := range s.Endpoints {
			if now, ok := rest[identity(e)]; ok && len(kept[i]) < maxEndpoints {
				kept[i] = append(kept[i], now)
				delete(rest, identity(e))
			}
		}
	}
	return kept
}

// settle updates or removes one slice that is there.
func (p *changes) settle(service *corev1.Service, s *discoveryv1.EndpointSlice, endpoints []discoveryv1.Endpoint) {
	if len(endpoints) == 0 {
		p.remove = append(p.remove, s)
		return
	}
	if equality.Semantic.DeepEqual(s.Endpoints, endpoints) && equality.Semantic.DeepEqual(s.Labels, labelsOf(service)) {
		return
	}
	updated := s.DeepCopy()
	dress(updated, service, endpoints)
	p.update = append(p.update, updated)
}

func dress(s *discoveryv1.EndpointSlice, service *corev1.Service, endpoints []discoveryv1.Endpoint) {
	s.Endpoints, s.Labels = endpoints, labelsOf(service)
	s.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service"))}
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, corev1.EndpointsLastChangeTriggerTime, time.Now().UTC().Format(time.RFC3339Nano))
}

// labelsOf copies the Service's labels, the marker among them, as Kubernetes' own controller does.
func labelsOf(service *corev1.Service) map[string]string {
	all := maps.Clone(service.Labels)
	if all == nil {
		all = make(map[string]string)
	}
	delete(all, corev1.IsHeadlessService)
	if service.Spec.ClusterIP == corev1.ClusterIPNone {
		all[corev1.IsHeadlessService] = ""
	}
	all[discoveryv1.LabelServiceName], all[discoveryv1.LabelManagedBy] = service.Name, ManagedBy
	return all
}

// freeName depends on nothing but what is there: a second attempt, made from a cache that does not have the first one's slice
// yet, meets that slice instead of adding another.
func freeName(service *corev1.Service, g group, taken map[string]bool) string {
	sum := fnv.New32a()
	sum.Write([]byte(g.key))
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s-external-%s-%08x-%d", service.Name, strings.ToLower(string(g.family)), sum.Sum32(), i)
		if !taken[name] {
			taken[name] = true
			return name
		}
	}
}
