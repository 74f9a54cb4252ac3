package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// StreamPolicy says which sources may use a stream. It is made in the trench's namespace. As soon as there is one for a stream,
// only traffic from the sources of its policies, taken together, reaches the stream's targets; a source that resolves to nothing
// allows nothing. Without any, the stream's flows decide alone. A policy is in force from when it is Accepted, which is when all its
// sources were read once.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=spol,categories=meridio
// +kubebuilder:printcolumn:name="Trench",type=string,JSONPath=`.spec.stream.trench`
// +kubebuilder:printcolumn:name="Conduit",type=string,JSONPath=`.spec.stream.conduit`
// +kubebuilder:printcolumn:name="Stream",type=string,JSONPath=`.spec.stream.stream`
// +kubebuilder:printcolumn:name="Prefixes",type=integer,JSONPath=`.status.totalPrefixes`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type StreamPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says who may use what.
	Spec StreamPolicySpec `json:"spec"`

	// Status is what the sources resolve to.
	//
	// +optional
	Status StreamPolicyStatus `json:"status,omitempty"`
}

// StreamPolicySpec says who may use what.
type StreamPolicySpec struct {
	// Stream that is used, in the namespace of this object. It does not change: for another stream make another policy.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a policy stays with its stream; make another one"
	Stream LocalStreamReference `json:"stream"`

	// Sources that may use it.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Sources []PolicySource `json:"sources"`
}

// LocalStreamReference names a stream of the object's own namespace.
type LocalStreamReference struct {
	// Trench is the name of the trench.
	Trench Name `json:"trench"`

	// Conduit is the name of the conduit in the trench.
	Conduit Name `json:"conduit"`

	// Stream is the name of the stream in the conduit.
	Stream Name `json:"stream"`
}

// PolicySource is exactly one source of traffic.
//
// +kubebuilder:validation:XValidation:rule="[has(self.externalTarget), has(self.service), has(self.cidr)].exists_one(x, x)",message="name exactly one of externalTarget, service, cidr"
type PolicySource struct {
	// ExternalTarget whose addresses, as in its status, may use the stream, ready or not. One of another namespace must agree: its
	// annotation meridio.nordix.org/policy-namespaces lists that of the policy.
	//
	// +optional
	ExternalTarget *ObjectReference `json:"externalTarget,omitempty"`

	// Service whose endpoints may use the stream, ready or not. One of another namespace must agree, as an ExternalTarget.
	//
	// +optional
	Service *ObjectReference `json:"service,omitempty"`

	// CIDR is a prefix such as 192.0.2.0/24 or 2001:db8::/32.
	//
	// +optional
	// +kubebuilder:validation:MinLength=4
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked() && string(cidr(self)) == self",message="must be a prefix in canonical form, without host bits"
	CIDR string `json:"cidr,omitempty"`
}

// ObjectReference names an object.
type ObjectReference struct {
	// Namespace of the object. Default: that of the policy.
	//
	// +optional
	Namespace NamespaceName `json:"namespace,omitempty"`

	// Name of the object.
	Name ObjectName `json:"name"`
}

// StreamPolicyStatus is what the sources resolve to.
type StreamPolicyStatus struct {
	// Prefixes from which the stream may be used by this policy, as few as possible and sorted; none where there would be more than 1000.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Prefixes []Prefix `json:"prefixes,omitempty"`

	// TotalPrefixes is how many there are.
	//
	// +optional
	TotalPrefixes int32 `json:"totalPrefixes"`

	// Conditions: Accepted, Resolved.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Prefix is an IP prefix.
//
// +kubebuilder:validation:MaxLength=49
type Prefix string

// StreamPolicyList is a list of StreamPolicies.
//
// +kubebuilder:object:root=true
type StreamPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StreamPolicy `json:"items"`
}
