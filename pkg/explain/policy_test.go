package explain

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

var policyClients = Subject{Kind: StreamPolicy, Namespace: "red", Name: "clients"}

// restricted are facts of a StreamPolicy clients that is in force for s1.
func restricted() Facts {
	f := healthy()
	f.Cluster.Policies = []PolicyFacts{{
		Ref: pool.Ref{Namespace: "red", Name: "clients"}, Stream: s1, Prefixes: 2,
		Conditions: Conditions{"Accepted": {Status: "True", Reason: "InForce"}, "Resolved": {Status: "True", Reason: "Resolved"}},
	}}
	f.Process.Prefixes = map[stream.Key]int{s1: 3}
	return f
}

func TestStreamPolicy(t *testing.T) {
	e := Explain(policyClients, restricted())
	require.True(t, e.Works, text(e))
	require.Equal(t, "in force: 2 prefixes may use stream "+s1.String(), e.Verdict)

	is := func(kind string, c Condition) func(*Facts) {
		return func(f *Facts) { f.Cluster.Policies[0].Conditions[kind] = c }
	}
	for name, tt := range map[string]breaks{
		"none":          {"", func(f *Facts) { f.Cluster.Policies = nil }, StepExists, []string{"there is no StreamPolicy clients", "kubectl get streampolicies"}},
		"no controller": {"", func(f *Facts) { f.Cluster.Policies[0].Conditions = nil }, StepInForce, []string{"nsp controller"}},
		"changed since": {"", is("Accepted", Condition{Status: "True", Outdated: true}), StepInForce, []string{"no controller"}},
		"pending":       {"", is("Accepted", Condition{Status: "Unknown", Reason: "Pending", Message: "Service web was not read."}), StepInForce, []string{"Pending", "Service web"}},
		"nobody":        {"", func(f *Facts) { f.Cluster.Policies[0].Prefixes = 0 }, StepSources, []string{"nobody gets in"}},
		"another NSP":   {"", func(f *Facts) { f.Process.Namespace = "blue" }, StepEnforced, []string{"namespace blue", "--server"}},
		"not told":      {"", func(f *Facts) { f.Process.Prefixes = nil }, StepEnforced, []string{"no policy", "streampolicies"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := restricted()
			tt.how(&f)
			e := Explain(policyClients, f)
			require.Equal(t, tt.step, e.Stopped, text(e))
			require.NotEmpty(t, e.Advice)
			for _, w := range tt.says {
				require.Contains(t, e.Verdict+"\n"+e.Advice, w)
			}
		})
	}
}

// What cannot be read, or counts by what was known last, is no cross.
func TestStreamPolicyInDoubt(t *testing.T) {
	for name, how := range map[string]func(*Facts){
		"policies": func(f *Facts) { f.Cluster.PoliciesErr, f.Cluster.Policies = "forbidden", nil },
		"process":  func(f *Facts) { f.Process.Err, f.Process.Prefixes = "forbidden", nil },
	} {
		f := restricted()
		how(&f)
		e := Explain(policyClients, f)
		require.Empty(t, e.Stopped, name)
		require.False(t, e.Works, name)
		require.Contains(t, e.Verdict, "forbidden", name)
	}
	f := restricted()
	f.Cluster.Policies[0].Conditions["Resolved"] = Condition{Status: "False", Reason: "LastKnown", Message: "Service web cannot be read."}
	e := Explain(policyClients, f)
	require.True(t, e.Works, text(e))
	require.Contains(t, text(e), "LastKnown")
}
