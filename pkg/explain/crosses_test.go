package explain

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// breaks is one thing that is broken, and how the explanation names it.
type breaks struct {
	in   string // namespace, red where empty
	how  func(*Facts)
	step string
	says []string
}

func label(name, value string) func(*Facts) {
	return func(f *Facts) {
		f.Cluster.Services[0].Labels[name] = value
		if value == "" {
			delete(f.Cluster.Services[0].Labels, name)
		}
	}
}

func member(f *Facts) *MemberFacts { return &f.Process.Pools[0].Members[0] }
func target(f *Facts) *TargetFacts { return &f.Process.Targets[0] }
func unready(f *Facts) {
	f.Cluster.Pods[0].Ready, f.Cluster.Pods[0].NotReady = false, "ContainersNotReady: containers with unready status: [app]"
	f.Cluster.Slices[0].Endpoints[0].Ready = new(false)
	member(f).Condition, member(f).State = "NotReady", "INACTIVE"
	target(f).State, target(f).Reason = "INACTIVE", "NotReady"
}

// crossesOfLabels are by what the pod, its Service and the trench say.
var crossesOfLabels = map[string]breaks{
	"no pod":         {"", func(f *Facts) { f.Cluster.Pods = nil }, StepExists, []string{"there is no pod web-0", "kubectl get pods"}},
	"ended":          {"", func(f *Facts) { f.Cluster.Pods[0].Phase = "Failed" }, StepExists, []string{"has ended"}},
	"not selected":   {"", func(f *Facts) { f.Cluster.Pods[0].Labels["app"] = "db"; f.Cluster.Slices = nil }, StepSelected, []string{"web wants app=web", "app=db"}},
	"no Service":     {"", func(f *Facts) { f.Cluster.Services = nil }, StepSelected, []string{"docs/first-service.md"}},
	"no marker":      {"", label(pool.LabelMarker, ""), StepMarker, []string{"kubectl label service -n red web " + pool.LabelMarker + "=" + pool.MarkerValue}},
	"ordinary":       {"", func(f *Facts) { f.Cluster.Services[0].Labels = nil }, StepMarker, []string{"bears no label"}},
	"other proxy":    {"", label(pool.LabelMarker, "cilium"), StepMarker, []string{`"cilium"`, "--overwrite"}},
	"no stream":      {"", label(pool.LabelStream, ""), StepLabels, []string{pool.LabelStream + " is missing"}},
	"bad stream":     {"", label(pool.LabelStream, "-"), StepLabels, []string{"STREAM"}},
	"external name":  {"", func(f *Facts) { f.Cluster.Services[0].Type = "ExternalName" }, StepType, []string{"headless"}},
	"other NSP":      {"", label(pool.LabelNamespace, "green"), StepNSP, []string{"green"}},
	"no grant":       {"blue", func(f *Facts) { f.Cluster.Grants = nil }, StepPermitted, []string{"TargetGrant", "blue"}},
	"grant unknown":  {"blue", func(f *Facts) { refuse(f, pool.ReasonNotPermitted) }, StepPermitted, []string{"has not taken it in"}},
	"no trench":      {"", func(f *Facts) { f.Cluster.Trenches[TrenchName{"red", "trench-a"}] = TrenchFacts{} }, StepStream, []string{"meridio-configuration-trench-a"}},
	"no such stream": {"", func(f *Facts) { f.Cluster.Trenches[TrenchName{"red", "trench-a"}].Config.Streams[0].Name = "s9" }, StepStream, []string{"lb/s9, lb/s2"}},
	"malformed":      {"", malformed, StepStream, []string{"malformed"}},
}

// crossesOfReading are by what the NSP reads, and which slices there are.
var crossesOfReading = map[string]breaks{
	"not watched":    {"", func(f *Facts) { f.Process.Namespaces = map[string]NamespaceFacts{"green": {Synced: true}} }, StepRead, []string{"targetNamespaces"}},
	"no Role":        {"", func(f *Facts) { f.Process.Namespaces["red"] = NamespaceFacts{Err: "forbidden"} }, StepRead, []string{"forbidden", "list and watch"}},
	"being read":     {"", func(f *Facts) { f.Process.Namespaces["red"] = NamespaceFacts{} }, StepRead, []string{"still being read"}},
	"not known":      {"", func(f *Facts) { f.Process.Pools = nil }, StepAccepted, []string{"does not know the Service"}},
	"refused":        {"", func(f *Facts) { refuse(f, "Strange") }, StepAccepted, []string{"Strange: no"}},
	"no slice":       {"", func(f *Facts) { f.Cluster.Slices = nil }, StepSlices, []string{"endpointslice controller"}},
	"slice unmarked": {"", func(f *Facts) { f.Cluster.Slices[0].Marked = false }, StepSlices, []string{"web-x", "kubectl label endpointslice"}},
	"no address": {"", func(f *Facts) {
		f.Cluster.Pods[0].IPs, f.Cluster.Pods[0].Phase = nil, "Pending"
		f.Cluster.Slices[0].Endpoints = nil
	}, StepListed, []string{"no address yet", "Pending"}},
	"not listed":       {"", func(f *Facts) { f.Cluster.Slices[0].Endpoints = nil }, StepListed, []string{"lists it"}},
	"not yet a member": {"", func(f *Facts) { f.Process.Pools[0].Members = nil }, StepListed, []string{"the NSP does not have it"}},
}

// crossesOfMembership are by whose the member is.
var crossesOfMembership = map[string]breaks{
	"no account": {"blue", func(f *Facts) {
		f.Cluster.Grants["red"] = pool.NewGrants([]pool.Grant{{Namespace: "blue", Trench: "trench-a", Accounts: []string{"app"}}})
	}, StepAccount, []string{"ServiceAccount default"}},
	"account not proven": {"blue", func(f *Facts) {
		f.Cluster.Grants["red"] = pool.NewGrants([]pool.Grant{{Namespace: "blue", Trench: "trench-a", Accounts: []string{"default"}}})
		member(f).Withheld, f.Process.Pools[0].Reason = true, pool.ReasonMembersNotPermitted
	}, StepAccount, []string{"token"}},
	"contested": {"", func(f *Facts) {
		member(f).Withheld = true
		f.Process.Pools[0].Reason, f.Process.Pools[0].Message = pool.ReasonConflict, "older"
	}, StepContested, []string{"older", "one trench"}},
	"by readiness": {"", func(f *Facts) { unready(f); member(f).Assigned = false }, StepAssigned, []string{"assignment=membership"}},
}

// crossesOfRegistration are by sidecar, registration and load balancers.
var crossesOfRegistration = map[string]breaks{
	"no sidecar":       {"", func(f *Facts) { f.Process.Sidecars, f.Process.Targets = nil, nil }, StepSidecar, []string{"kubectl logs"}},
	"sidecar unproven": {"", func(f *Facts) { f.Process.Sidecars[0].Proven = false }, StepSidecar, []string{"10.0.0.1", "token"}},
	"nobody told":      {"", func(f *Facts) { f.Process.Answering = false }, StepTold, []string{"has not read all"}},
	"no list":          {"", func(f *Facts) { f.Process.Sidecars[0].Told = false }, StepTold, []string{"no list"}},
	"other list":       {"", func(f *Facts) { f.Process.Sidecars[0].Streams = nil }, StepTold, []string{"no stream"}},
	"not registered":   {"", func(f *Facts) { f.Process.Targets = nil }, StepRegister, []string{"kubectl logs"}},
	"rebuilding":       {"", func(f *Facts) { f.Process.Targets, f.Process.Rebuilding = nil, true }, StepRegister, []string{"lost its registrations"}},
	"stranger":         {"", func(f *Facts) { target(f).Binding, target(f).PodUID = "", "" }, StepRegister, []string{"172.16.0.1/24 from 10.0.0.1"}},
	"stream full":      {"", full, StepRegister, []string{"all 2 identifiers", "max-targets"}},
	"bad identifier":   {"", func(f *Facts) { target(f).Identifier = "3" }, StepNumber, []string{`"3"`, "1..2"}},
	"no identifier":    {"", func(f *Facts) { target(f).Identifier = "" }, StepNumber, []string{`""`}},
	"disabled":         {"", func(f *Facts) { target(f).Status = "DISABLED" }, StepEnabled, []string{"DISABLED"}},
	"blocked":          {"", blocked, StepEnabled, []string{"172.16.0.9/24 (pod red/web-9)"}},
	"not ready":        {"", unready, StepReady, []string{"[app]", "kubectl describe pod"}},
	"draining":         {"", func(f *Facts) { unready(f); member(f).Condition = "Draining" }, StepReady, []string{"terminates"}},
	"pending":          {"", func(f *Facts) { target(f).State = ""; f.Process.Trenches["trench-a"] = TrenchState{} }, StepState, []string{"has not read the configuration of trench trench-a"}},
	"left":             {"", func(f *Facts) { target(f).State, target(f).Reason = "INACTIVE", "LeftPool" }, StepState, []string{"LeftPool"}},
	"told to drain":    {"", func(f *Facts) { target(f).State, target(f).Reason = "DRAINING", "Draining" }, StepState, []string{"no new ones"}},
	"no source":        {"", func(f *Facts) { f.Process.Prefixes = map[stream.Key]int{s1: 0} }, StepBalancers, []string{"nobody may use", "streampolicies"}},
	"no load balancer": {"", func(f *Facts) { f.Process.Receivers[0].Conduit = "other" }, StepBalancers, []string{"red/trench-a/lb"}},
}

// Every cross: the step that stops a pod is the first one, and says what to do.
func TestCrossesOfAPod(t *testing.T) {
	for _, table := range []map[string]breaks{crossesOfLabels, crossesOfReading, crossesOfMembership, crossesOfRegistration} {
		for name, tt := range table {
			t.Run(name, func(t *testing.T) {
				ns := orNone(tt.in, "red")
				f := healthyIn(ns)
				tt.how(&f)
				stopped(t, Explain(Subject{Kind: Pod, Namespace: ns, Name: "web-0"}, f), tt)
			})
		}
	}
}

// stopped asserts that the first cross is the one, and that every step is one that is known.
func stopped(t *testing.T, e *Explanation, want breaks) {
	t.Helper()
	require.False(t, e.Works)
	require.Equal(t, want.step, e.Stopped, "%s\n%s", e.Verdict, text(e))
	require.NotEmpty(t, e.Advice)
	for _, w := range want.says {
		require.Contains(t, e.Verdict+"\n"+e.Advice, w)
	}
	for _, p := range e.Paths {
		for _, s := range p.Steps {
			require.NotEmpty(t, s.ID)
			require.Equal(t, titles[s.ID], s.Title)
		}
	}
}

func refuse(f *Facts, reason string) {
	f.Process.Pools[0].Accepted, f.Process.Pools[0].Reason, f.Process.Pools[0].Message = false, reason, "no"
	f.Process.Pools[0].Members = nil
}

func malformed(f *Facts) {
	f.Cluster.Trenches[TrenchName{"red", "trench-a"}] = TrenchFacts{Config: &config.Config{}, Malformed: []string{config.KeyStreams}}
}

func full(f *Facts) {
	target(f).PodUID, target(f).Pod = "u8", "red/web-8"
	other := *target(f)
	other.Identifier, other.Addresses = "2", []string{"172.16.0.9/24"}
	f.Process.Targets = append(f.Process.Targets, other)
}

func blocked(f *Facts) {
	other := *target(f)
	other.Addresses, other.Pod, other.PodUID = []string{"172.16.0.9/24"}, "red/web-9", "u9"
	target(f).Blocked, target(f).Status, target(f).State, target(f).Reason = true, "DISABLED", "INACTIVE", "WaitingForIdentifier"
	f.Process.Targets = append(f.Process.Targets, other)
}
