package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/external"
	allow "github.com/nordix/meridio-nsp/pkg/sources"
)

// AnnotationPolicyNamespaces on a Service or an ExternalTarget lists the other namespaces, separated by commas, whose StreamPolicies
// may name it: whoever reads the policy learns its addresses.
const AnnotationPolicyNamespaces = "meridio.nordix.org/policy-namespaces"

// maxStatusPrefixes is how many the status takes.
const maxStatusPrefixes = 1000

// policies resolves the sources of StreamPolicies and writes their status.
type policies struct {
	client client.Client
	// watched are the namespaces that the caches have; none stands for all.
	watched  []string
	services *endpoints

	mu sync.Mutex
	// before are the prefixes that another process found, as long as some source was not read by this one.
	before map[types.NamespacedName]foundBefore
}

type foundBefore struct {
	uid        types.UID
	generation int64
	prefixes   []netip.Prefix
}

// Reconcile implements reconcile.Reconciler.
func (r *policies) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var policy v1alpha1.StreamPolicy
	err := r.client.Get(ctx, request.NamespacedName, &policy)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	if err != nil || !policy.DeletionTimestamp.IsZero() {
		r.services.follow(request.NamespacedName, nil) //nolint:contextcheck // as below
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	found, err := r.resolve(ctx, &policy)
	if err != nil {
		return reconcile.Result{}, err
	}
	if found.asked {
		return reconcile.Result{}, nil // the answer wakes this reconciler again
	}
	status := found.status(&policy, r.remembered(&policy, len(found.unread) > 0))
	if !equality.Semantic.DeepEqual(status, policy.Status) {
		if err := applyStatus(ctx, r.client, &policy, "StreamPolicy", status); err != nil {
			return reconcile.Result{}, fmt.Errorf("writing the status: %w", err)
		}
	}
	return reconcile.Result{}, nil
}

// found is what there is to say of the sources of a policy.
type found struct {
	prefixes []netip.Prefix
	// asked is set while a Service has not answered at all.
	asked bool
	// unread are sources of which nothing is known yet, stale those of which the last known addresses count.
	unread, stale []string
	// refused and missing are sources that allow nothing because they may not be named, or are not there; empty are those that have
	// no address now.
	refused, missing, empty []string
	invalid                 error
}

// resolve looks at every source. The error is one of the caches, and worth another attempt.
func (r *policies) resolve(ctx context.Context, p *v1alpha1.StreamPolicy) (*found, error) {
	var f found
	var services []types.NamespacedName
	for _, s := range p.Spec.Sources {
		var err error
		switch {
		case s.ExternalTarget != nil:
			err = r.target(ctx, p, s.ExternalTarget, &f)
		case s.Service != nil:
			var name types.NamespacedName
			if name, err = r.service(ctx, p, s.Service, &f); name.Name != "" {
				services = append(services, name)
			}
		default:
			prefix, invalid := allow.Parse(s.CIDR)
			f.prefixes, f.invalid = append(f.prefixes, prefix), errors.Join(f.invalid, invalid)
		}
		if err != nil {
			return nil, err
		}
	}
	r.services.follow(client.ObjectKeyFromObject(p), services) //nolint:contextcheck // a watch outlives the reconciliation
	for _, name := range services {
		f.endpoints(name, r.services.state(name))
	}
	return &f, nil
}

// named reads an object that a policy names, and tells whether it may.
func (r *policies) named(ctx context.Context, p *v1alpha1.StreamPolicy, ref *v1alpha1.ObjectReference, kind string, object client.Object, f *found) (string, bool, error) {
	name := types.NamespacedName{Namespace: p.Namespace, Name: string(ref.Name)}
	if ref.Namespace != "" {
		name.Namespace = string(ref.Namespace)
	}
	text := kind + " " + name.String()
	if len(r.watched) > 0 && !slices.Contains(r.watched, name.Namespace) {
		f.refused = append(f.refused, text+" (the controller does not watch its namespace: see --target-namespaces)")
		return text, false, nil
	}
	err := r.client.Get(ctx, name, object)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return text, false, err
	case name.Namespace != p.Namespace && (err != nil || !agrees(object, p.Namespace)):
		// Whether it is there is nobody's business who was not let in.
		f.refused = append(f.refused, fmt.Sprintf("%s (it is not there, or its annotation %s does not list %s)", text, AnnotationPolicyNamespaces, p.Namespace))
		return text, false, nil
	case err != nil:
		f.missing = append(f.missing, text)
		return text, false, nil
	}
	return text, true, nil
}

// agrees tells whether the object lets policies of a namespace name it.
func agrees(object client.Object, namespace string) bool {
	for name := range strings.SplitSeq(object.GetAnnotations()[AnnotationPolicyNamespaces], ",") {
		if strings.TrimSpace(name) == namespace {
			return true
		}
	}
	return false
}

func (r *policies) target(ctx context.Context, p *v1alpha1.StreamPolicy, ref *v1alpha1.ObjectReference, f *found) error {
	var t v1alpha1.ExternalTarget
	text, ok, err := r.named(ctx, p, ref, "ExternalTarget", &t, f)
	if err != nil || !ok {
		return err
	}
	resolved := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionResolved)
	switch {
	case resolved == nil || resolved.Status == metav1.ConditionUnknown:
		f.unread = append(f.unread, text)
	case len(t.Status.Addresses) == 0:
		f.empty = append(f.empty, text)
	case resolved.Status == metav1.ConditionFalse:
		f.stale = append(f.stale, fmt.Sprintf("%s (%s)", text, resolved.Reason))
	}
	for _, a := range t.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			f.prefixes = append(f.prefixes, host(addr))
		}
	}
	return nil
}

// service is the one whose endpoints count, or none.
func (r *policies) service(ctx context.Context, p *v1alpha1.StreamPolicy, ref *v1alpha1.ObjectReference, f *found) (types.NamespacedName, error) {
	var s corev1.Service
	_, ok, err := r.named(ctx, p, ref, "Service", &s, f)
	if err != nil || !ok {
		return types.NamespacedName{}, err
	}
	return client.ObjectKeyFromObject(&s), nil
}

func (f *found) endpoints(name types.NamespacedName, state *endpointState) {
	text := "Service " + name.String()
	switch {
	case state == nil:
		f.asked = true
		return
	case !state.read:
		f.unread = append(f.unread, fmt.Sprintf("%s (%s)", text, state.failure))
	case state.failure != "":
		f.stale = append(f.stale, fmt.Sprintf("%s (%s)", text, state.failure))
	case len(state.addrs) == 0:
		f.empty = append(f.empty, text)
	}
	for _, a := range state.addrs {
		f.prefixes = append(f.prefixes, host(a))
	}
}

func host(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// remembered is what the status said when this process saw the policy first, while some source was not read since, and the policy
// is the same.
func (r *policies) remembered(p *v1alpha1.StreamPolicy, unread bool) []netip.Prefix {
	name := client.ObjectKeyFromObject(p)
	if !unread {
		r.forget(name)
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.before[name]
	if !known || last.uid != p.UID {
		last = foundBefore{uid: p.UID, generation: p.Generation}
		if accepted := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted); accepted != nil {
			last.generation = accepted.ObservedGeneration
		}
		for _, text := range p.Status.Prefixes {
			if prefix, err := allow.Parse(string(text)); err == nil {
				last.prefixes = append(last.prefixes, prefix)
			}
		}
		r.before[name] = last
	}
	if last.generation != p.Generation {
		return nil // its owner has changed his mind since
	}
	return last.prefixes
}

func (r *policies) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.before, name)
}

// status makes the status. A policy is in force, and Accepted, from when all its sources have been read once: until then it would cut
// off who was let in so far.
func (f *found) status(p *v1alpha1.StreamPolicy, before []netip.Prefix) v1alpha1.StreamPolicyStatus {
	status := *p.Status.DeepCopy()
	set := func(kind string, holds metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: holds, Reason: reason, Message: message, ObservedGeneration: p.Generation})
	}
	accepted := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
	switch {
	case f.invalid != nil:
		status.Prefixes, status.TotalPrefixes = nil, 0
		message := fmt.Sprintf("%v. Until that is corrected nobody may use the stream by this policy.", f.invalid)
		set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, external.ReasonInvalid, message)
		set(v1alpha1.ConditionResolved, metav1.ConditionFalse, external.ReasonInvalid, message)
		return status
	case len(f.unread) > 0 && (accepted == nil || accepted.Status == metav1.ConditionUnknown):
		message := fmt.Sprintf("Nothing is known yet of %s. Until then this policy is not in force.", few(f.unread))
		set(v1alpha1.ConditionAccepted, metav1.ConditionUnknown, external.ReasonPending, message)
		set(v1alpha1.ConditionResolved, metav1.ConditionUnknown, external.ReasonPending, message)
		return status
	}
	set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, "InForce", "Only the sources of the policies for the stream may use it.")
	all := allow.Of(slices.Concat(f.prefixes, before)...)
	status.Prefixes, status.TotalPrefixes = nil, int32(all.Len())
	if all.Len() <= maxStatusPrefixes {
		for _, prefix := range all.Strings() {
			status.Prefixes = append(status.Prefixes, v1alpha1.Prefix(prefix))
		}
	}
	holds, reason, message := f.verdict(all.Len())
	set(v1alpha1.ConditionResolved, holds, reason, message)
	return status
}

// verdict is the condition Resolved: the worst that there is to say, and in the message all of it.
func (f *found) verdict(total int) (holds metav1.ConditionStatus, reason, message string) {
	holds, reason = metav1.ConditionTrue, external.ReasonResolved
	parts := []string{fmt.Sprintf("%d prefixes.", total)}
	for _, is := range []struct {
		holds  metav1.ConditionStatus
		reason string
		names  []string
		text   string
	}{
		{metav1.ConditionTrue, external.ReasonNoAddresses, f.empty, "No address now, so nobody gets in by: %s."},
		{metav1.ConditionFalse, "LastKnown", f.stale, "The last known addresses count of: %s."},
		{metav1.ConditionFalse, "NotFound", f.missing, "Not there, so nobody gets in by: %s."},
		{metav1.ConditionFalse, "NotPermitted", f.refused, "Not permitted, so nobody gets in by: %s."},
		{metav1.ConditionUnknown, external.ReasonPending, f.unread, "Not read yet, so what was known before counts: %s."},
	} {
		if len(is.names) > 0 {
			holds, reason = is.holds, is.reason
			parts = append(parts, fmt.Sprintf(is.text, few(is.names)))
		}
	}
	if total > maxStatusPrefixes {
		return metav1.ConditionFalse, "TooManyPrefixes", fmt.Sprintf(
			"%d prefixes are more than %d, so nobody may use the stream by this policy: name wider CIDRs, or make several policies.", total, maxStatusPrefixes)
	}
	return holds, reason, strings.Join(parts, " ")
}
