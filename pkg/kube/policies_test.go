package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// policyObject is a StreamPolicy for a stream, with these prefixes in its status, where the condition Accepted has the status; without
// one nobody has looked at it yet.
func policyObject(name, of, accepted string, prefixes ...string) *unstructured.Unstructured {
	status := map[string]any{}
	if accepted != "" {
		var list []any
		for _, p := range prefixes {
			list = append(list, p)
		}
		status["prefixes"] = list
		status["conditions"] = []any{map[string]any{"type": "Accepted", "status": accepted, "reason": "x"}}
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"spec":   map[string]any{"stream": map[string]any{"trench": "t", "conduit": "c", "stream": of}},
		"status": status,
	}}
	o.SetName(name)
	o.SetAPIVersion("targetpool.meridio.nordix.org/v1alpha1")
	o.SetKind("StreamPolicy")
	return o
}

// policyLoop runs Policies against a fake API server.
type policyLoop struct {
	*testing.T
	*cabinet
	policies *Policies
	posted   *sink
	lines    *logs
	saved    map[string]string
}

func newPolicyLoop(t *testing.T, stored string, refusal error) *policyLoop {
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		policiesResource: "StreamPolicyList",
	})
	l := &policyLoop{
		T: t, posted: &sink{}, saved: map[string]string{},
		cabinet: &cabinet{name: "streampolicies", items: map[string]*unstructured.Unstructured{}, refusal: refusal},
	}
	l.serve(client)
	log, lines := newLog()
	l.lines = lines
	l.policies = NewPolicies(PoliciesConfig{
		Client: client, Sink: l.posted, Namespace: "red", Stored: []byte(stored), Log: log,
		Save: func(name string, data []byte) { l.saved[name] = string(data) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.policies.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		synctest.Wait()
		if l.watch != nil {
			l.watch.Stop()
		}
		require.NoError(t, <-done)
	})
	synctest.Wait()
	return l
}

// said are the limits of the latest event; "-" where there was none since the last call.
func (l *policyLoop) said() string {
	l.Helper()
	synctest.Wait()
	events := l.posted.all()
	if len(events) == 0 {
		return "-"
	}
	l.posted.take(l.T, len(events))
	limits := as[engine.AccessChanged](l.T, events[len(events)-1]).Sources
	var all []string
	for _, k := range slices.SortedFunc(maps.Keys(limits), stream.Compare) {
		require.Equal(l, stream.Key{Namespace: "red", Trench: "t", Conduit: "c", Name: k.Name}, k)
		all = append(all, fmt.Sprintf("%s%v", k.Name, limits[k].Strings()))
	}
	return strings.Join(all, " ")
}

func TestPoliciesFollowTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPolicyLoop(t, "", nil)
		require.Empty(t, l.said())
		l.change("a", policyObject("a", "s1", "", "10.0.0.0/8"))
		require.Equal(t, "-", l.said(), "no controller has seen it")
		l.change("a", policyObject("a", "s1", "Unknown"))
		require.Equal(t, "-", l.said(), "its sources were not read yet")
		l.change("a", policyObject("a", "s1", "True", "10.0.0.0/9"))
		require.Equal(t, "s1[10.0.0.0/9]", l.said())
		require.JSONEq(t, `[{"Stream":{"Namespace":"red","Trench":"t","Conduit":"c","Name":"s1"},"Prefixes":["10.0.0.0/9"]}]`, l.saved[PoliciesDocument])
		l.change("b", policyObject("b", "s1", "True", "10.128.0.0/9", "2001:db8::/32", "nonsense"))
		require.Equal(t, "s1[10.0.0.0/8 2001:db8::/32]", l.said(), "the policies of a stream are taken together")
		l.change("c", policyObject("c", "s2", "False"))
		require.Equal(t, "s1[10.0.0.0/8 2001:db8::/32] s2[]", l.said(), "one that is refused lets nobody in")
		require.NoError(t, testutil.CollectAndCompare(l.policies, strings.NewReader(`
# HELP nsp_stream_source_prefixes Prefixes from which a stream may be used, of streams that have a policy; from 0 nobody may use it.
# TYPE nsp_stream_source_prefixes gauge
nsp_stream_source_prefixes{conduit="c",stream="s1",trench="t"} 2
nsp_stream_source_prefixes{conduit="c",stream="s2",trench="t"} 0
`)))
		l.change("a", nil)
		l.change("c", nil)
		require.Equal(t, "s1[10.128.0.0/9 2001:db8::/32]", l.said())
		l.change("b", nil)
		require.Empty(t, l.said())
	})
}

// change changes an object, of which the watch tells.
func (l *policyLoop) change(name string, o *unstructured.Unstructured) { l.cabinet.set(name, o, true) }

// What is more than one message carries lets nobody in, and the log says so once.
func TestTooManyPrefixesOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPolicyLoop(t, "", nil)
		_ = l.said()
		for i := range 11 {
			var prefixes []string
			for n := range 1000 {
				prefixes = append(prefixes, fmt.Sprintf("10.%d.%d.%d/32", i, n/100, 2*(n%100)))
			}
			l.change(fmt.Sprint(i), policyObject(fmt.Sprint(i), "s1", "True", prefixes...))
		}
		require.Equal(t, "s1[]", l.said())
		l.change("0", policyObject("0", "s1", "True", "10.0.0.1/32"))
		require.Equal(t, "-", l.said())
		require.Equal(t, 1, l.lines.count("too many prefixes"))
		l.change("1", nil)
		require.NotEqual(t, "s1[]", l.said())
	})
}

// Without an answer of the cluster what was stored counts, and where nothing was stored nobody is told that all may pass.
func TestPoliciesThatCannotBeRead(t *testing.T) {
	const stored = `[{"Stream":{"Namespace":"red","Trench":"t","Conduit":"c","Name":"s1"},"Prefixes":["10.0.0.0/9"]}]`
	away := errors.New("connection refused")
	for name, test := range map[string]struct {
		stored  string
		refusal error
		want    string
	}{
		"stored":                   {stored, away, "s1[10.0.0.0/9]"},
		"stored and not permitted": {stored, forbidden, "s1[10.0.0.0/9]"},
		"nothing stored":           {"", away, "-"},
		"damaged":                  {"{", away, "-"},
		"never permitted":          {"", forbidden, ""},
		"unknown kind":             {"", apierrors.NewNotFound(schema.GroupResource{}, ""), ""},
		"stored, and unknown kind": {stored, apierrors.NewNotFound(schema.GroupResource{}, ""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPolicyLoop(t, test.stored, test.refusal)
				require.Equal(t, test.want, l.said())
				l.cabinet.set("a", policyObject("a", "s2", "True", "192.0.2.0/24"), false)
				l.refuse(nil)
				time.Sleep(2 * time.Minute)
				require.Equal(t, "s2[192.0.2.0/24]", l.said())
				l.refuse(forbidden)
				l.watch.Stop()
				time.Sleep(10 * time.Minute)
				require.Equal(t, "-", l.said(), "the state is held")
				require.LessOrEqual(t, l.lines.count("policies cannot be read"), 2)
			})
		})
	}
}
