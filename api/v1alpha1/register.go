package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of all kinds of this package.
const Group = "targetpool.meridio.nordix.org"

// GroupVersion is the version that this package describes.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

var builder = runtime.NewSchemeBuilder(func(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&TargetGrant{}, &TargetGrantList{},
		&ExternalTarget{}, &ExternalTargetList{},
		&TargetPool{}, &TargetPoolList{},
		&StreamPolicy{}, &StreamPolicyList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
})

// AddToScheme registers the kinds of this package.
func AddToScheme(scheme *runtime.Scheme) error { return builder.AddToScheme(scheme) }

// Resource returns the name of a resource of this group, for clients that go by names.
func Resource(plural string) schema.GroupVersionResource { return GroupVersion.WithResource(plural) }
