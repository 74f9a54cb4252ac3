package explain

// The IDs of the steps, in the order of the way.
const (
	StepAddress   = "Address"
	StepExists    = "Exists"
	StepResolved  = "Resolved"
	StepMade      = "Made"
	StepSelected  = "Selected"
	StepMarker    = "Marker"
	StepLabels    = "Labels"
	StepType      = "Type"
	StepNSP       = "NSP"
	StepPermitted = "Permitted"
	StepStream    = "Stream"
	StepPorts     = "Ports"
	StepRead      = "Read"
	StepAccepted  = "Accepted"
	StepSlices    = "Slices"
	StepCurrent   = "Current"
	StepMembers   = "Members"
	StepListed    = "Listed"
	StepNamed     = "Named"
	StepConfirmed = "Confirmed"
	StepAccount   = "Account"
	StepContested = "Contested"
	StepAssigned  = "Assigned"
	StepSidecar   = "Sidecar"
	StepTold      = "Told"
	StepRegister  = "Registered"
	StepBound     = "Bound"
	StepNumber    = "Identifier"
	StepEnabled   = "Enabled"
	StepReady     = "Ready"
	StepState     = "State"
	StepBalancers = "LoadBalancers"
	StepInForce   = "InForce"
	StepSources   = "Sources"
	StepEnforced  = "Enforced"
)

// titles are the steps as questions that a tick answers with yes.
var titles = map[string]string{
	StepAddress:   "somebody registered the address",
	StepExists:    "exists",
	StepResolved:  "its addresses are known",
	StepMade:      "its Service is there",
	StepSelected:  "a Service selects it",
	StepMarker:    "the Service is for Meridio",
	StepLabels:    "its labels name a stream",
	StepType:      "its type has endpoints",
	StepNSP:       "this NSP serves the stream",
	StepPermitted: "the namespace may join",
	StepStream:    "the stream exists",
	StepPorts:     "its ports meet the flows",
	StepRead:      "the NSP reads the namespace",
	StepAccepted:  "the NSP accepted the Service",
	StepSlices:    "its EndpointSlices are for Meridio",
	StepCurrent:   "the NSP is up to date",
	StepMembers:   "it has members",
	StepListed:    "it is a member",
	StepNamed:     "a grant names it",
	StepConfirmed: "its status confirms the addresses",
	StepAccount:   "its ServiceAccount may join",
	StepContested: "no other trench holds it",
	StepAssigned:  "it is assigned the stream",
	StepSidecar:   "its sidecar watches",
	StepTold:      "its sidecar was told",
	StepRegister:  "it registered in the stream",
	StepBound:     "the registration is the pod's",
	StepNumber:    "it has an identifier",
	StepEnabled:   "the registration is enabled",
	StepReady:     "it is ready",
	StepState:     "load balancers are told to use it",
	StepBalancers: "load balancers listen",
	StepInForce:   "it is in force",
	StepSources:   "its sources have addresses",
	StepEnforced:  "the NSP restricts the stream",
}

// The states and statuses on the wire.
const (
	stateActive   = "ACTIVE"
	stateDraining = "DRAINING"
	statusEnabled = "ENABLED"
)

// step is one look at the facts. It returns a Skip where an earlier cross leaves it without meaning.
type step func(*path) Step

func (p *path) run(steps []step) []Step {
	out := make([]Step, 0, len(steps))
	for _, s := range steps {
		out = append(out, s(p))
	}
	return out
}

func (p *path) serviceSteps() []Step {
	return p.run([]step{
		(*path).marker, (*path).labels, (*path).kind, (*path).servedHere, (*path).permitted, (*path).streamExists, (*path).ports,
		(*path).read, (*path).accepted, (*path).sliced, (*path).current,
	})
}

// memberSteps are those of the pod or ExternalTarget that is followed.
func (p *path) memberSteps() []Step {
	if p.external == nil {
		return p.podSteps()
	}
	return p.run([]step{
		(*path).named, (*path).confirmed, (*path).listed, (*path).contested, (*path).assigned, (*path).sidecar, (*path).told,
		(*path).registered, (*path).number, (*path).enabled, (*path).ready, (*path).state, (*path).balancers,
	})
}

// podSteps end with readiness, not begin with it: a pod may need its stream to become ready, so a sidecar that is missing is the
// cause and NotReady what follows.
func (p *path) podSteps() []Step {
	return p.run([]step{
		(*path).listed, (*path).account, (*path).contested, (*path).assigned, (*path).sidecar, (*path).told, (*path).registered,
		(*path).number, (*path).enabled, (*path).ready, (*path).state, (*path).balancers,
	})
}
