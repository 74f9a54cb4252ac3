package kube

import "github.com/nordix/meridio-nsp/pkg/pool"

// The reasons of events that no condition has.
const (
	ReasonMarkerRemoved = "MarkerRemoved"
	ReasonStreamChanged = "StreamChanged"
)

// Reason is what a condition or an event may say, for the reference.
type Reason struct {
	// Of is a condition, or Event.
	Of, Name string
	// Status is that of the condition; empty where it may be both.
	Status string
	// Means and Do are sentences: what is so, and what to do about it.
	Means, Do string
}

// Event is what Reason.Of says of reasons that only events have. Each change of Accepted is an event too.
const Event = "Event"

// Reasons are all reasons that there are.
var Reasons = []Reason{
	{ConditionAccepted, pool.ReasonAccepted, "True", "The Service is a pool of its stream.", ""},
	{ConditionAccepted, pool.ReasonIncompleteLabels, "False", "A label that names the stream is missing or empty.", "Set the label that the message names."},
	{ConditionAccepted, pool.ReasonInvalidLabels, "False", "A label names no possible stream.", "Correct the label."},
	{ConditionAccepted, pool.ReasonUnsupportedType, "False", "The Service is of a type that has no endpoints.", "Use type ClusterIP."},
	{ConditionAccepted, pool.ReasonNotPermitted, "False", "No grant lets the namespace join the stream.", "Ask the owner of the trench for a TargetGrant."},
	{ConditionAccepted, pool.ReasonInvalidAnnotations, "True", "An annotation is not understood, and the default is used.", "Correct the annotation."},
	{ConditionAccepted, pool.ReasonMembersNotPermitted, "True", "The grant is for some ServiceAccounts, and members are not proven to run as one of them.", "Run the pods as one of them, with the sidecar under an authorisation that proves it, or widen the grant."},
	{ConditionAccepted, pool.ReasonConflict, "True", "Members are held by an older Service of another trench.", "Let each pod be in one trench."},
	{ConditionAccepted, ReasonStreamNotFound, "True", "The configuration of the trench has no such stream.", "Create the stream, or correct the labels."},
	{ConditionAccepted, ReasonPortsNotServed, "True", "No flow of the stream is for a port of the Service.", "Correct the ports or the flows."},
	{ConditionProgrammed, ReasonProgrammed, "True", "Every Ready member takes traffic.", ""},
	{ConditionProgrammed, ReasonNotAccepted, "False", "The Service is no pool.", "See the condition Accepted."},
	{ConditionProgrammed, ReasonNoMembers, "False", "No EndpointSlice lists an endpoint that counts.", "Look at the selector, and at the slices' labels."},
	{ConditionProgrammed, ReasonNoTargets, "False", "No member has registered in the stream.", "Look at the sidecars that the message names, and at the TAPAs."},
	{ConditionProgrammed, ReasonNotReady, "False", "No member is Ready.", "Look at the pods."},
	{ConditionProgrammed, ReasonWaitingForIdentifier, "False", "Members have no identifier in 1..max-targets.", "Raise max-targets of the stream, or have fewer pods."},
	{ConditionProgrammed, ReasonPanic, "", "Fewer members are Ready than the panic threshold says, so all count.", "Look at the pods."},
	{ConditionProgrammed, ReasonPartly, "False", "Some Ready members do not take traffic yet.", "Wait, or look at the members that the message names."},
	{Event, ReasonMarkerRemoved, "", "The marker is gone from the Service: its streams are closed, its conditions are removed, and kube-proxy has it back. A headless Service is not load balanced by kube-proxy.", ""},
	{Event, ReasonStreamChanged, "", "The labels name another stream than before.", ""},
}
