// Package v1alpha1 holds the custom resources of the target pools: who may join a trench (TargetGrant), members that are not
// pods (ExternalTarget), pools without a hand-made Service (TargetPool), and who may use a stream (StreamPolicy).
//
// +kubebuilder:object:generate=true
// +groupName=targetpool.meridio.nordix.org
package v1alpha1
