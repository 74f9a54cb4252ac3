package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionAccepted of a TargetPool and of a StreamPolicy is whether it has effect.
const ConditionAccepted = "Accepted"

// TargetPool makes pods and ExternalTargets of its namespace targets of a stream, without a Service made by hand. It becomes
// one Service, which it owns: headless, with the labels that make it a pool, and gone when the TargetPool is gone. All that is
// to be said of the pool's members stands on that Service.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=tpool,categories=meridio
// +kubebuilder:printcolumn:name="Trench",type=string,JSONPath=`.spec.stream.trench`
// +kubebuilder:printcolumn:name="Conduit",type=string,JSONPath=`.spec.stream.conduit`
// +kubebuilder:printcolumn:name="Stream",type=string,JSONPath=`.spec.stream.stream`
// +kubebuilder:printcolumn:name="Service",type=string,JSONPath=`.status.service`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="the name must also be one for a Service: at most 63 letters, digits and '-', beginning with a letter"
type TargetPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which members hold which stream.
	Spec TargetPoolSpec `json:"spec"`

	// Status names the Service.
	//
	// +optional
	Status TargetPoolStatus `json:"status,omitempty"`
}

// TargetPoolSpec says which members hold which stream.
type TargetPoolSpec struct {
	// Stream that the members hold.
	Stream StreamReference `json:"stream"`

	// Selector is what labels a pod or an ExternalTarget must bear to be a member.
	//
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a key must be the key of a label"
	Selector map[string]LabelValue `json:"selector"`

	// Assignment says which members hold the stream: all ("membership") or those that are ready ("ready"). Default: what the
	// namespace process was told.
	//
	// +optional
	// +kubebuilder:validation:Enum=membership;ready
	Assignment string `json:"assignment,omitempty"`

	// Draining says what becomes of connections to members that terminate but still serve: "remove" or "keep".
	//
	// +optional
	// +kubebuilder:validation:Enum=remove;keep
	Draining string `json:"draining,omitempty"`

	// PanicThreshold in percent: when fewer of the members are ready, all count as active. 0 is off.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	PanicThreshold *int32 `json:"panicThreshold,omitempty"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type LabelValue string

// TargetPoolStatus names the Service.
type TargetPoolStatus struct {
	// Service is the name of the Service that was made for this TargetPool.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Service string `json:"service,omitempty"`

	// Conditions: Accepted.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TargetPoolList is a list of TargetPools.
//
// +kubebuilder:object:root=true
type TargetPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TargetPool `json:"items"`
}
