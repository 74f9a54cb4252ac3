package explain

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

func TestAllTicks(t *testing.T) {
	for _, s := range []Subject{podWeb0, serviceWeb, address} {
		e := Explain(s, healthy())
		require.Truef(t, e.Works, "%s: %s", s, e.Verdict)
		require.Empty(t, e.Differences)
		require.Empty(t, e.Advice)
		for _, p := range e.Paths {
			for _, step := range p.Steps {
				require.Equal(t, Pass, step.Status, "%+v", step)
				require.NotEmpty(t, step.Title)
			}
		}
	}
	foreign := Subject{Kind: Pod, Namespace: "blue", Name: "web-0"}
	require.True(t, Explain(foreign, healthyIn("blue")).Works)
}

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

// Every cross: the step that stops a pod is the first one, and says what to do.
func TestCrossesOfAPod(t *testing.T) {
	for name, tt := range map[string]breaks{
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
		"by readiness":     {"", func(f *Facts) { unready(f); member(f).Assigned = false }, StepAssigned, []string{"assignment=membership"}},
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
		"no load balancer": {"", func(f *Facts) { f.Process.Receivers[0].Conduit = "other" }, StepBalancers, []string{"red/trench-a/lb"}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := orNone(tt.in, "red")
			f := healthyIn(ns)
			tt.how(&f)
			e := Explain(Subject{Kind: Pod, Namespace: ns, Name: "web-0"}, f)
			require.False(t, e.Works)
			require.Equal(t, tt.step, e.Stopped, "%s\n%s", e.Verdict, text(e))
			require.NotEmpty(t, e.Advice)
			for _, w := range tt.says {
				require.Contains(t, e.Verdict+"\n"+e.Advice, w)
			}
			for _, p := range e.Paths {
				for _, s := range p.Steps {
					require.NotEmpty(t, s.ID)
					require.Equal(t, titles[s.ID], s.Title)
				}
			}
		})
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

// Warnings stop nothing.
func TestWarnings(t *testing.T) {
	for name, tt := range map[string]breaks{
		"port":     {"", func(f *Facts) { f.Cluster.Services[0].Ports[0] = pool.Port{Number: 443, Protocol: "TCP"} }, StepPorts, []string{"TCP 443"}},
		"protocol": {"", func(f *Facts) { f.Cluster.Services[0].Ports[0].Protocol = "UDP" }, StepPorts, []string{"UDP 80"}},
		"no flow":  {"", func(f *Facts) { f.Cluster.Trenches[TrenchName{"red", "trench-a"}].Config.Flows[0].Stream = "s2" }, StepPorts, []string{"no flows"}},
		"API away": {"", func(f *Facts) {
			f.Process.Namespaces["red"] = NamespaceFacts{Synced: true, Err: "refused", Age: time.Minute}
		}, StepRead, []string{"refused"}},
		"API silent": {"", func(f *Facts) { f.Process.Namespaces["red"] = NamespaceFacts{Synced: true, Age: time.Hour} }, StepRead, []string{"1h0m0s"}},
		"problems":   {"", func(f *Facts) { f.Process.Pools[0].Problems = []string{"endpoint 3 has no address"} }, StepAccepted, []string{"endpoint 3"}},
		"panic":      {"", func(f *Facts) { f.Process.Pools[0].Panic = true }, StepAccepted, []string{"too few"}},
		"one unmarked": {"", func(f *Facts) {
			s := f.Cluster.Slices[0]
			s.Name, s.Marked = "hand", false
			f.Cluster.Slices = append(f.Cluster.Slices, s)
		}, StepSlices, []string{"hand"}},
		"behind":        {"", func(f *Facts) { f.Process.Pools[0].Slices["web-x"] = 6 }, StepCurrent, []string{"version 6", "7"}},
		"1.x TAPA":      {"", func(f *Facts) { f.Process.Sidecars = nil }, StepSidecar, []string{"made without"}},
		"panic traffic": {"", func(f *Facts) { unready(f); target(f).State, target(f).Reason = "ACTIVE", "Panic" }, StepReady, []string{"[app]"}},
		"LB behind":     {"", func(f *Facts) { f.Process.Receivers[0].Revision = 8 }, StepBalancers, []string{"10.0.1.1 has revision 8 of 9"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			tt.how(&f)
			e := Explain(podWeb0, f)
			require.True(t, e.Works, e.Verdict)
			i := slices.IndexFunc(e.Paths[0].Steps, func(s Step) bool { return s.ID == tt.step })
			s := e.Paths[0].Steps[i]
			require.Equal(t, Warn, s.Status)
			for _, w := range tt.says {
				require.Contains(t, s.Detail, w)
			}
		})
	}
}

// What the process has and what the cluster has are told apart.
func TestDifferences(t *testing.T) {
	for name, tt := range map[string]struct {
		how  func(*Facts)
		says string
	}{
		"slice newer":      {func(f *Facts) { f.Cluster.Slices[0].Version = 8 }, "the NSP has version 7 of EndpointSlice web-x, the cluster 8"},
		"slice unknown":    {func(f *Facts) { f.Process.Pools[0].Slices = nil }, "the NSP does not have EndpointSlice web-x"},
		"slice gone":       {func(f *Facts) { f.Process.Pools[0].Slices["old"] = 1 }, "the NSP has EndpointSlice old"},
		"label changed":    {func(f *Facts) { f.Process.Pools[0].Stream.Name = "s0" }, "the NSP has Service red/web with stream red/trench-a/lb/s0"},
		"Service new":      {func(f *Facts) { f.Process.Pools[0].UID = "older" }, "the NSP has Service red/web with stream"},
		"Service unknown":  {func(f *Facts) { f.Process.Pools = nil }, "bears the marker and the NSP does not have it"},
		"member gone":      {func(f *Facts) { f.Cluster.Slices[0].Endpoints = nil }, "still has pod web-0 as a member"},
		"member unknown":   {func(f *Facts) { f.Process.Pools[0].Members = nil }, "lists pod web-0, the NSP does not have it"},
		"condition":        {func(f *Facts) { member(f).Condition = "NotReady" }, "say that pod web-0 is Ready, the NSP has NotReady"},
		"controller late":  {func(f *Facts) { f.Cluster.Pods[0].Ready = false }, "the endpointslice controller is behind"},
		"max-targets":      {func(f *Facts) { f.Process.Trenches["trench-a"].MaxTargets[s1] = 5 }, "gives stream red/trench-a/lb/s1 2 targets, the NSP 5"},
		"stale":            {func(f *Facts) { f.Process.Stale = true }, "goes by what it stored"},
		"namespace unread": {func(f *Facts) { f.Process.Namespaces["red"] = NamespaceFacts{Synced: true, Err: "x"} }, "cannot read namespace red"},
		"API silent":       {func(f *Facts) { f.Process.Namespaces["red"] = NamespaceFacts{Synced: true, Age: time.Hour} }, "heard nothing of namespace red for 1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			tt.how(&f)
			require.Contains(t, strings.Join(Explain(podWeb0, f).Differences, "\n"), tt.says)
		})
	}
	f := healthyIn("blue")
	f.Cluster.Grants = nil
	require.Contains(t, strings.Join(Explain(Subject{Kind: Pod, Namespace: "blue", Name: "web-0"}, f).Differences, "\n"), "a grant for namespace blue that is gone")
}

// Where one side does not answer, the other is told, and nothing is claimed.
func TestOneSideSilent(t *testing.T) {
	f := healthy()
	f.Process = ProcessFacts{Err: "refused"}
	for _, s := range []Subject{podWeb0, serviceWeb, address} {
		e := Explain(s, f)
		require.False(t, e.Works)
		require.Empty(t, e.Stopped, text(e))
		require.Contains(t, e.Verdict, "refused")
		require.NotEmpty(t, e.Advice)
	}
	label(pool.LabelMarker, "")(&f)
	require.Equal(t, StepMarker, Explain(podWeb0, f).Stopped)

	f = healthy()
	f.Cluster = ClusterFacts{Err: "no kubeconfig"}
	for _, s := range []Subject{podWeb0, serviceWeb, address} {
		e := Explain(s, f)
		require.Empty(t, e.Stopped, text(e))
		require.Contains(t, e.Verdict, "no kubeconfig")
	}
	unready := f
	unready.Process.Pools[0].Members[0].Condition = "NotReady"
	unready.Process.Targets[0].State = "INACTIVE"
	require.Equal(t, StepReady, Explain(podWeb0, unready).Stopped)
	f.Process.Pools = nil
	require.Equal(t, StepSelected, Explain(podWeb0, f).Stopped)
	require.Equal(t, StepExists, Explain(serviceWeb, f).Stopped)
}

// Of a Service the members are counted, and the first that is stopped is explained.
func TestService(t *testing.T) {
	f := healthy()
	for _, name := range []string{"web-1", "web-2"} {
		pod := f.Cluster.Pods[0]
		pod.Name, pod.UID, pod.IPs = name, "u-"+name, []string{"10.0.0." + name[4:] + "0"}
		f.Cluster.Pods = append(f.Cluster.Pods, pod)
		e := f.Cluster.Slices[0].Endpoints[0]
		e.Addresses, e.Target = pod.IPs, &pool.TargetRef{Kind: "Pod", Name: name, UID: pod.UID}
		f.Cluster.Slices[0].Endpoints = append(f.Cluster.Slices[0].Endpoints, e)
		m := f.Process.Pools[0].Members[0]
		m.Pod, m.UID, m.Addresses = name, pod.UID, pod.IPs
		f.Process.Pools[0].Members = append(f.Process.Pools[0].Members, m)
	}
	e := Explain(serviceWeb, f)
	require.Equal(t, StepSidecar, e.Stopped)
	require.Equal(t, 3, e.Members)
	count := func(id string) Count {
		return e.Counts[slices.IndexFunc(e.Counts, func(c Count) bool { return c.ID == id })]
	}
	require.Equal(t, Count{ID: StepListed, Title: titles[StepListed], Passed: 3}, count(StepListed))
	require.Equal(t, Count{ID: StepSidecar, Title: titles[StepSidecar], Passed: 1, Failed: []string{"red/web-1", "red/web-2"}}, count(StepSidecar))
	require.Equal(t, "red/web-1", e.Paths[1].Pod)

	f = healthy()
	f.Cluster.Services = nil
	require.Equal(t, StepExists, Explain(serviceWeb, f).Stopped)
	f = healthy()
	f.Cluster.Pods, f.Cluster.Slices[0].Endpoints, f.Process.Pools[0].Members = nil, nil, nil
	e = Explain(serviceWeb, f)
	require.Equal(t, StepMembers, e.Stopped)
	require.Contains(t, e.Verdict, "app=web")
	f.Cluster.Services[0].Selector = nil
	require.Contains(t, Explain(serviceWeb, f).Verdict, "list nothing that counts")
	f.Cluster.Slices = nil
	require.Contains(t, Explain(serviceWeb, f).Verdict, "no selector and no EndpointSlice")
}

// An address leads to its registration, that to its pod, and that to its Service.
func TestTarget(t *testing.T) {
	f := healthy()
	f.Process.Targets[0].Addresses = []string{"172.16.0.5/24"}
	require.Equal(t, StepAddress, Explain(address, f).Stopped)
	require.Contains(t, Explain(address, f).Verdict, "the sidecar of pod web-0 reports it")
	f.Process.Sidecars = nil
	require.Contains(t, Explain(address, f).Verdict, "no pod of the namespace bears it")

	f = healthy()
	primary := address
	primary.Addr = primary.Addr.Next()
	f.Cluster.Pods[0].IPs = []string{primary.Addr.String()}
	e := Explain(primary, f)
	require.True(t, e.Works)
	require.Contains(t, e.Paths[0].Steps[0].Detail, "primary address of pod red/web-0")

	// The application of Meridio 1.x registers on its own.
	f = healthy()
	f.Process.Targets[0].Stream = stream.Key{Namespace: "red", Trench: "trench-a", Conduit: "lb", Name: "s2"}
	f.Process.Targets[0].Binding, f.Process.Targets[0].Listed, f.Process.Targets[0].Reason = "", false, "OpenedByApplication"
	e = Explain(address, f)
	require.True(t, e.Works, text(e))
	require.Contains(t, text(e), "the application registered on its own")

	f = healthy()
	unbind := target(&f)
	unbind.Binding, unbind.Pod, unbind.PodUID, unbind.Listed = "", "", "", false
	e = Explain(address, f)
	require.True(t, e.Works)
	require.Contains(t, text(e), "readiness does not count")

	f = healthy()
	f.Cluster.Services, f.Process.Pools = nil, nil
	target(&f).State, target(&f).Reason = "INACTIVE", "LeftPool"
	require.Equal(t, StepListed, Explain(address, f).Stopped)
	f.Cluster.Pods[0].Name = "another"
	require.Equal(t, StepExists, Explain(address, f).Stopped)
}

// The way that comes furthest is the one that counts where a pod is in several Services.
func TestSeveralServices(t *testing.T) {
	f := healthy()
	other := f.Cluster.Services[0]
	other.Name, other.UID = "other", "s-other"
	other.Labels = map[string]string{pool.LabelMarker: pool.MarkerValue}
	f.Cluster.Services = append([]ServiceFacts{other}, f.Cluster.Services...)
	e := Explain(podWeb0, f)
	require.True(t, e.Works)
	require.Len(t, e.Paths, 2)
	require.Equal(t, StepLabels, mustStop(t, e.Paths[0]).ID)
}

func mustStop(t *testing.T, p Path) Step {
	s, ok := p.First(Fail)
	require.True(t, ok)
	return s
}

func text(e *Explanation) string {
	var b strings.Builder
	for _, p := range e.Paths {
		b.WriteString(p.Title + "\n")
		for _, s := range p.Steps {
			b.WriteString("  " + string(s.Status) + " " + s.ID + ": " + s.Detail + "\n")
		}
	}
	return b.String()
}
