// Package controller turns ExternalTargets into EndpointSlices, and TargetPools and the selectors of Streams into Services.
//
//	ExternalTarget.spec -> a running source -> ExternalTarget.status -> EndpointSlices of the Services that select it
//
// Each arrow is level-triggered: whatever was missed, or was cut off by the end of the process, is made good by the next look.
// The status is all that is remembered, so a process that has just begun changes nothing before its sources have answered.
//
// It needs these permissions in the target namespaces: of services get, list, watch, create, update; of endpointslices get, list,
// watch, create, update, delete; of secrets get; of externaltargets and targetpools get, list, watch, of their status patch; and of
// streams.meridio.nordix.org, where there are such, get, list, watch. In its own namespace: of leases get, create, update.
package controller
