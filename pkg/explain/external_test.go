package explain

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

var externalVM = Subject{Kind: ExternalTarget, Namespace: "red", Name: "vm-1"}

// healthyVM are facts of an ExternalTarget vm-1 that takes traffic, beside the pod web-0, in the one Service web.
func healthyVM() Facts {
	f := healthy()
	vm := pool.Target{Ref: pool.Ref{Namespace: "red", Name: "vm-1"}, UID: "x1", Confirmed: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	f.Cluster.Externals = []ExternalFacts{{
		Target: vm, Labels: map[string]string{"app": "web"}, Source: "addresses", Ready: 1,
		Conditions: Conditions{"Resolved": {Status: "True"}, "Ready": {Status: "True"}},
	}}
	f.Cluster.Grants["red"] = pool.NewGrants([]pool.Grant{{Namespace: "red", Trench: "trench-a", Externals: []string{"vm-1"}}})
	f.Cluster.Slices = append(f.Cluster.Slices, SliceFacts{Marked: true, Owned: true, Slice: pool.Slice{
		Namespace: "red", Name: "web-external", Service: "web", OwnerUID: "s-web", Version: 8, AddressType: "IPv4",
		Endpoints: []pool.Endpoint{{
			Addresses: []string{"192.0.2.1"}, Ready: new(true), Target: &pool.TargetRef{Kind: "ExternalTarget", Namespace: "red", Name: "vm-1", UID: "x1"},
		}},
	}})
	p := &f.Process
	p.Pools[0].Slices["web-external"] = 8
	p.Pools[0].Members = append(p.Pools[0].Members, MemberFacts{
		Namespace: "red", Pod: "vm-1", UID: "x1", External: true, Addresses: []string{"192.0.2.1"}, Condition: "Ready", State: "ACTIVE", Assigned: true, Watched: true,
	})
	sidecar := p.Sidecars[0]
	sidecar.Pod, sidecar.PodUID, sidecar.External, sidecar.Peer = "", "", "vm-1", "192.0.2.1"
	p.Sidecars = append(p.Sidecars, sidecar)
	registered := p.Targets[0]
	registered.ID, registered.Identifier, registered.Addresses = 2, "2", []string{"172.16.0.2/24"}
	registered.Pod, registered.PodUID = "red/vm-1", "x1"
	p.Targets = append(p.Targets, registered)
	return f
}

func vm(f *Facts) *ExternalFacts         { return &f.Cluster.Externals[0] }
func vmMember(f *Facts) *MemberFacts     { return &f.Process.Pools[0].Members[1] }
func vmEndpoint(f *Facts) *pool.Endpoint { return &f.Cluster.Slices[1].Endpoints[0] }

func resolved(status, reason string) func(*Facts) {
	return func(f *Facts) {
		vm(f).Conditions["Resolved"] = Condition{Status: status, Reason: reason, Message: "The name does not exist."}
	}
}

func TestAllTicksOfAnExternalTarget(t *testing.T) {
	second := Subject{Kind: Target, Namespace: "red", Addr: netip.MustParseAddr("172.16.0.2")}
	for _, s := range []Subject{externalVM, podWeb0, serviceWeb, second} {
		e := Explain(s, healthyVM())
		require.Truef(t, e.Works, "%s: %s\n%s", s, e.Verdict, text(e))
		require.Empty(t, e.Differences)
		for _, p := range e.Paths {
			for _, step := range p.Steps {
				require.Equal(t, Pass, step.Status, "%+v", step)
			}
		}
	}
	e := Explain(serviceWeb, healthyVM())
	require.Equal(t, 2, e.Members)
	e = Explain(externalVM, healthyVM())
	require.Equal(t, "red/vm-1", e.Paths[0].ExternalTarget)
	require.Empty(t, e.Paths[0].Pod)
}

// A sidecar that knows no more than its address is the machine's too.
func TestExternalTargetByItsAddress(t *testing.T) {
	f := healthyVM()
	f.Process.Sidecars[1].External, f.Process.Sidecars[1].Address = "", "192.0.2.1"
	require.True(t, Explain(externalVM, f).Works)
	f.Process.Sidecars[1].Address = "192.0.2.2"
	require.NotContains(t, text(Explain(externalVM, f)), "pass Sidecar")
}

func TestCrossesOfAnExternalTarget(t *testing.T) {
	unlist := func(f *Facts) {
		f.Cluster.Slices = f.Cluster.Slices[:1]
		f.Process.Pools[0].Members = f.Process.Pools[0].Members[:1]
	}
	for name, tt := range map[string]breaks{
		"none":          {"", func(f *Facts) { f.Cluster.Externals = nil }, StepExists, []string{"there is no ExternalTarget vm-1"}},
		"no controller": {"", func(f *Facts) { vm(f).Conditions = nil; vm(f).Confirmed = nil }, StepResolved, []string{"nsp controller", "red"}},
		"changed since": {"", func(f *Facts) {
			vm(f).Conditions["Resolved"] = Condition{Status: "True", Outdated: true}
		}, StepResolved, []string{"no controller"}},
		"not resolved": {"", func(f *Facts) { resolved("False", "NameNotFound")(f); vm(f).Confirmed = nil; unlist(f) }, StepResolved, []string{"NameNotFound: The name", "kubectl describe externaltarget -n red vm-1"}},
		"no addresses": {"", func(f *Facts) { vm(f).Confirmed = nil; unlist(f) }, StepResolved, []string{"has none"}},
		"not selected": {"", func(f *Facts) { vm(f).Labels = map[string]string{"app": "db"}; unlist(f) }, StepSelected, []string{"web wants app=web", "the ExternalTarget has app=db"}},
		"no marker":    {"", label(pool.LabelMarker, ""), StepMarker, []string{"bears no label"}},
		"no grant":     {"", func(f *Facts) { f.Cluster.Grants = nil; unlist(f) }, StepNamed, []string{"names ExternalTarget vm-1", "externalTargets: [vm-1]"}},
		"other grant": {"", func(f *Facts) {
			f.Cluster.Grants["red"] = pool.NewGrants([]pool.Grant{{Namespace: "red", Trench: "trench-a"}, {Namespace: "red", Trench: "trench-a", Externals: []string{"vm-2"}}})
			unlist(f)
		}, StepNamed, []string{"externalTargets"}},
		"not written": {"", unlist, StepListed, []string{"the controller writes one"}},
		"forged": {"", func(f *Facts) {
			vmEndpoint(f).Addresses = []string{"192.0.2.66"}
			f.Process.Pools[0].Members = f.Process.Pools[0].Members[:1]
		}, StepConfirmed, []string{"192.0.2.66 in web-external"}},
		"made anew": {"", func(f *Facts) { vmEndpoint(f).Target.UID = "x0" }, StepConfirmed, []string{"another object of the name"}},
		"health down": {"", func(f *Facts) {
			vmEndpoint(f).Ready, vm(f).Ready = new(false), 0
			vm(f).Conditions["Ready"] = Condition{Status: "False", Message: "0 of 1 addresses take traffic."}
			vmMember(f).Condition, vmMember(f).State = "NotReady", "INACTIVE"
			f.Process.Targets[1].State, f.Process.Targets[1].Reason = "INACTIVE", "NotReady"
		}, StepReady, []string{"0 of 1 addresses", "health probe"}},
		"not taken in":   {"", func(f *Facts) { f.Process.Pools[0].Members = f.Process.Pools[0].Members[:1] }, StepListed, []string{"the NSP does not have it"}},
		"no sidecar":     {"", func(f *Facts) { f.Process.Sidecars, f.Process.Targets = nil, nil }, StepSidecar, []string{"the log of its sidecar"}},
		"not registered": {"", func(f *Facts) { f.Process.Targets = f.Process.Targets[:0] }, StepRegister, []string{"has not registered"}},
		"this cluster": {"", func(f *Facts) {
			f.Process.Cluster, vm(f).Origin = "west", pool.Component{Cluster: "west", Namespace: "red", Service: "web"}
			f.Process.Pools[0].Members = f.Process.Pools[0].Members[:1]
		}, StepListed, []string{"the name of this one"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthyVM()
			tt.how(&f)
			stopped(t, Explain(externalVM, f), tt)
			require.True(t, name == "no marker" || Explain(podWeb0, f).Works || f.Process.Sidecars == nil || len(f.Process.Targets) == 0, "the pod beside it is as before")
		})
	}
}

// What stops nothing is told all the same.
func TestWarningsOfAnExternalTarget(t *testing.T) {
	for name, tt := range map[string]breaks{
		"held": {"", resolved("False", "ResolverFailed"), StepResolved, []string{"1 address of before", "ResolverFailed"}},
		"one forged": {"", func(f *Facts) {
			e := *vmEndpoint(f)
			e.Addresses = []string{"192.0.2.66"}
			f.Cluster.Slices[1].Endpoints = append(f.Cluster.Slices[1].Endpoints, e)
		}, StepConfirmed, []string{"192.0.2.66 in web-external", "the others count"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthyVM()
			tt.how(&f)
			e := Explain(externalVM, f)
			require.True(t, e.Works, text(e))
			s, ok := e.Paths[0].First(Warn)
			require.True(t, ok)
			require.Equal(t, tt.step, s.ID)
			for _, w := range tt.says {
				require.Contains(t, s.Detail, w)
			}
		})
	}
}

// A Service counts its ExternalTargets as it does its pods, and names the one that is stopped.
func TestServiceOfPodsAndExternalTargets(t *testing.T) {
	f := healthyVM()
	f.Cluster.Grants = nil
	f.Process.Pools[0].Members = f.Process.Pools[0].Members[:1]
	e := Explain(serviceWeb, f)
	require.Equal(t, StepNamed, e.Stopped)
	require.Equal(t, 2, e.Members)
	require.Equal(t, "red/vm-1", e.Paths[1].ExternalTarget)
	for _, c := range e.Counts {
		switch c.ID {
		case StepNamed:
			require.Equal(t, Count{ID: StepNamed, Title: titles[StepNamed], Passed: 1, Failed: []string{"red/vm-1"}}, c)
		case StepAccount:
			require.Equal(t, 2, c.Passed, "it is no question for an ExternalTarget")
		}
	}
	// A Service that selects nothing but ExternalTargets is not empty.
	f = healthyVM()
	f.Cluster.Pods, f.Cluster.Slices[0].Endpoints = nil, nil
	f.Process.Pools[0].Members = f.Process.Pools[0].Members[1:]
	e = Explain(serviceWeb, f)
	require.True(t, e.Works, text(e))
	require.Equal(t, 1, e.Members)
}

// A pod and an ExternalTarget of one name are two.
func TestSameNameAsAPod(t *testing.T) {
	f := healthyVM()
	vm(&f).Name, vmMember(&f).Pod, vmEndpoint(&f).Target.Name = "web-0", "web-0", "web-0"
	f.Process.Targets[1].Pod = "red/web-0"
	f.Cluster.Grants["red"] = pool.NewGrants([]pool.Grant{{Namespace: "red", Trench: "trench-a", Externals: []string{"web-0"}}})
	f.Process.Targets = f.Process.Targets[:1] // the pod's
	f.Process.Sidecars = f.Process.Sidecars[:1]
	require.True(t, Explain(podWeb0, f).Works)
	require.Equal(t, StepSidecar, Explain(Subject{Kind: ExternalTarget, Namespace: "red", Name: "web-0"}, f).Stopped)
}

// Where one side does not answer, nothing is claimed.
func TestExternalTargetAndOneSideSilent(t *testing.T) {
	f := healthyVM()
	f.Process = ProcessFacts{Err: "refused"}
	e := Explain(externalVM, f)
	require.Empty(t, e.Stopped, text(e))
	require.Contains(t, e.Verdict, "refused")

	f = healthyVM()
	f.Cluster = ClusterFacts{Err: "no kubeconfig"}
	e = Explain(externalVM, f)
	require.Empty(t, e.Stopped, text(e))
	require.Contains(t, e.Verdict, "no kubeconfig")

	f = healthyVM()
	f.Cluster.ExternalsErr, f.Cluster.Externals = "forbidden", nil
	e = Explain(externalVM, f)
	require.Empty(t, e.Stopped, text(e))
	require.Contains(t, e.Verdict, "forbidden")
	require.True(t, Explain(serviceWeb, f).Works, "the pods are known")

	f = healthyVM()
	f.Cluster.GrantsErr, f.Cluster.Grants = map[string]string{"red": "forbidden"}, nil
	require.True(t, Explain(externalVM, f).Works, "the NSP has it as a member")
	require.True(t, Explain(podWeb0, f).Works)
}
