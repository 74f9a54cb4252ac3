package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TargetGrant lets workloads of other namespaces join streams of a trench. It is made in the trench's namespace, by whoever
// owns the trench: a Service of another namespace becomes a pool only where a grant permits it. Deleting a grant closes what it
// alone had allowed. The trench's own namespace needs no grant for its pods.
//
// A TargetGrant permits what matches any entry of "from" to join what matches any entry of "to".
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=tgrant,categories=meridio
// +kubebuilder:printcolumn:name="From",type=string,JSONPath=`.spec.from[*].namespace`,description="First namespace that is permitted"
// +kubebuilder:printcolumn:name="To",type=string,JSONPath=`.spec.to[*].trench`,description="First trench that may be joined"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TargetGrant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says who may join what.
	Spec TargetGrantSpec `json:"spec"`
}

// TargetGrantSpec says who may join what.
type TargetGrantSpec struct {
	// From lists who is permitted.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	From []GrantFrom `json:"from"`

	// To lists what may be joined, in the namespace of this object.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	To []GrantTo `json:"to"`
}

// GrantFrom is one namespace, or a part of it. With neither serviceAccounts nor externalTargets every pod of the namespace is
// permitted, and nothing else; with either, only what is listed.
type GrantFrom struct {
	// Namespace of the Services and of their members.
	Namespace NamespaceName `json:"namespace"`

	// ServiceAccounts permits the pods that run as one of these ServiceAccounts; "*" stands for all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="!('*' in self) || size(self) == 1",message="\"*\" stands for all names and must be the only one"
	ServiceAccounts []GrantName `json:"serviceAccounts,omitempty"`

	// ExternalTargets permits the ExternalTargets of these names; "*" stands for all, and also permits the addresses of
	// hand-made EndpointSlices behind which there is no object at all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="!('*' in self) || size(self) == 1",message="\"*\" stands for all names and must be the only one"
	ExternalTargets []GrantName `json:"externalTargets,omitempty"`
}

// GrantName is the name of an object, or "*" for all.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:Pattern=`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$`
type GrantName string

// GrantTo is a trench, one of its conduits, or one of its streams.
//
// +kubebuilder:validation:XValidation:rule="!has(self.stream) || has(self.conduit)",message="a stream is named together with its conduit"
type GrantTo struct {
	// Trench that may be joined.
	Trench Name `json:"trench"`

	// Conduit that may be joined. Default: every conduit of the trench.
	//
	// +optional
	Conduit Name `json:"conduit,omitempty"`

	// Stream that may be joined. Default: every stream of the conduit.
	//
	// +optional
	Stream Name `json:"stream,omitempty"`
}

// TargetGrantList is a list of TargetGrants.
//
// +kubebuilder:object:root=true
type TargetGrantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TargetGrant `json:"items"`
}
