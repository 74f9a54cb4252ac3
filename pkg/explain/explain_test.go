package explain

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
