// Package controller turns ExternalTargets into EndpointSlices, TargetPools and the selectors of Streams into Services, and the
// sources of StreamPolicies into prefixes.
//
//	ExternalTarget.spec -> a running source -> ExternalTarget.status -> EndpointSlices of the Services that select it
//	StreamPolicy.spec -> the status of ExternalTargets, EndpointSlices of Services -> StreamPolicy.status
//
// Each arrow is level-triggered: whatever was missed, or was cut off by the end of the process, is made good by the next look.
// The status is all that is remembered, so a process that has just begun changes nothing before its sources have answered.
//
// The permissions that it needs are in docs/external-targets.md, and the chart gives them.
package controller
