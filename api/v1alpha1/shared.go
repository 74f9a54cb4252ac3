package v1alpha1

// Name is the name of a trench, conduit or stream: what is also allowed as the value of a label, by which Services name their
// stream.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
type Name string

// NamespaceName is the name of a namespace.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
type NamespaceName string

// ObjectName is the name of a Kubernetes object.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
type ObjectName string

// StreamReference names one stream of the namespace process that serves the namespace.
type StreamReference struct {
	// Namespace of the trench. Default: the namespace of the object that bears this reference.
	//
	// +optional
	Namespace NamespaceName `json:"namespace,omitempty"`

	// Trench is the name of the trench.
	Trench Name `json:"trench"`

	// Conduit is the name of the conduit in the trench.
	Conduit Name `json:"conduit"`

	// Stream is the name of the stream in the conduit.
	Stream Name `json:"stream"`
}
