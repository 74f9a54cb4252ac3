package explain

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

var poolWeb = Subject{Kind: TargetPool, Namespace: "red", Name: "web"}

// healthyPool are facts of a TargetPool web, for which the Service was made.
func healthyPool() Facts {
	f := healthy()
	f.Cluster.Made = []TargetPoolFacts{{
		Ref: pool.Ref{Namespace: "red", Name: "web"}, UID: "tp", Service: "web", Conditions: Conditions{"Accepted": {Status: "True"}},
	}}
	s := &f.Cluster.Services[0]
	s.MadeFor, s.Owner, s.OwnerUID = "TargetPool/web", "TargetPool/web", "tp"
	return f
}

func TestTargetPool(t *testing.T) {
	e := Explain(poolWeb, healthyPool())
	require.True(t, e.Works, text(e))
	require.Contains(t, text(e), "TargetPool red/web, Service red/web")
	require.Equal(t, 1, e.Members)

	made := func(c Condition) func(*Facts) {
		return func(f *Facts) { f.Cluster.Made[0].Conditions["Accepted"] = c }
	}
	for name, tt := range map[string]breaks{
		"none":          {"", func(f *Facts) { f.Cluster.Made = nil }, StepExists, []string{"there is no TargetPool web", "kubectl get targetpools"}},
		"no controller": {"", func(f *Facts) { f.Cluster.Made[0].Conditions = nil }, StepMade, []string{"nsp controller"}},
		"changed since": {"", made(Condition{Status: "True", Outdated: true}), StepMade, []string{"no controller"}},
		"name taken":    {"", made(Condition{Status: "False", Reason: "ServiceNameTaken", Message: "Service web: exists."}), StepMade, []string{"ServiceNameTaken", "another name"}},
		"Service gone":  {"", func(f *Facts) { f.Cluster.Services = nil }, StepMade, []string{"no Service web"}},
		"another's":     {"", func(f *Facts) { f.Cluster.Services[0].OwnerUID = "tp-0" }, StepMade, []string{"no Service web that it owns"}},
		"pod not ready": {"", unready, StepReady, []string{"red/web-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthyPool()
			tt.how(&f)
			e := Explain(poolWeb, f)
			require.Equal(t, tt.step, e.Stopped, text(e))
			require.NotEmpty(t, e.Advice)
			for _, w := range tt.says {
				require.Contains(t, e.Verdict+"\n"+e.Advice, w)
			}
		})
	}
	f := healthyPool()
	f.Cluster.MadeErr, f.Cluster.Made = "forbidden", nil
	e = Explain(poolWeb, f)
	require.Empty(t, e.Stopped)
	require.Contains(t, e.Verdict, "forbidden")
}

// A Service that was made says for whom, and whether that is so.
func TestServiceThatWasMade(t *testing.T) {
	of := func(f Facts) Step {
		for _, s := range Explain(serviceWeb, f).Paths[0].Steps {
			if s.ID == StepMade {
				return s
			}
		}
		return Step{}
	}
	require.Empty(t, of(healthy()).ID, "nobody asks of a Service that somebody wrote")
	s := of(healthyPool())
	require.Equal(t, Pass, s.Status)
	require.Equal(t, "the Service was made for TargetPool/web", s.Title)
	require.Contains(t, s.Detail, "change that")

	f := healthyPool()
	f.Cluster.Made = nil
	require.Equal(t, Warn, of(f).Status)
	require.Contains(t, of(f).Detail, "gone")
	f.Cluster.MadeErr = "forbidden"
	require.Equal(t, Pass, of(f).Status)
	f.Cluster.Services[0].MadeFor, f.Cluster.Services[0].Owner, f.Cluster.MadeErr = "Stream/s1", "Stream/s1", ""
	require.Equal(t, Pass, of(f).Status)
	f.Cluster.Services[0].Owner = ""
	require.Equal(t, Warn, of(f).Status)
	require.Contains(t, of(f).Detail, "nobody owns it")
}

func wait(f *Facts, ids ...string) {
	f.Process.Targets = nil
	for i, uid := range ids {
		f.Process.Waiting = append(f.Process.Waiting, Waiting{
			Stream: s1, Addresses: []string{"172.16.0." + string(rune('1'+i)) + "/24"}, Pod: "red/web-" + uid[1:], PodUID: uid, Preferred: uid != "u0",
		})
	}
}

// Who waits for an identifier is told so, and who comes first.
func TestWaitsForAnIdentifier(t *testing.T) {
	f := healthy()
	wait(&f, "u0", "u7", "u8")
	for _, s := range []Subject{podWeb0, address} {
		e := Explain(s, f)
		require.Equal(t, StepRegister, e.Stopped, text(e))
		require.Contains(t, e.Verdict, "172.16.0.1/24 waits for an identifier: all 2 of the stream are taken; 2 more wait, and 2 of them come first")
		require.Contains(t, e.Advice, "max-targets")
	}
	f = healthy()
	wait(&f, "u0")
	require.NotContains(t, Explain(podWeb0, f).Verdict, "more wait")
	f.Process.Trenches["trench-a"] = TrenchState{}
	require.Contains(t, Explain(podWeb0, f).Verdict, "has not read how many trench trench-a has")
	f = healthy()
	wait(&f, "u7")
	require.Contains(t, Explain(podWeb0, f).Verdict, "has not registered", "another one waits")
}
