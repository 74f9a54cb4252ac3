package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ExternalTargetStatus is what was found.
type ExternalTargetStatus struct {
	// Addresses that are known, sorted.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Addresses []AddressStatus `json:"addresses,omitempty"`

	// TotalAddresses is how many addresses are known.
	//
	// +optional
	TotalAddresses int32 `json:"totalAddresses"`

	// ReadyAddresses is how many of them are ready.
	//
	// +optional
	ReadyAddresses int32 `json:"readyAddresses"`

	// Conditions are Resolved, Ready and Selected.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AddressStatus is one address with what is known of it.
type AddressStatus struct {
	// Address is the IP address.
	//
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`

	// Ready is whether it takes new traffic.
	Ready bool `json:"ready"`

	// Serving is whether it serves the connections that it has.
	Serving bool `json:"serving"`

	// Terminating is whether it is about to go.
	//
	// +optional
	Terminating bool `json:"terminating,omitempty"`

	// Identity that the source vouches for, such as the SPIFFE ID of an instance; empty where it names none.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=2048
	Identity string `json:"identity,omitempty"`
}
