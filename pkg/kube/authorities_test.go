package kube

import (
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// The ConfigMaps of authorities are followed as long as somebody names them, with no other permission than to watch the one.
func TestAuthorities(t *testing.T) {
	e := newEnv(t, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"watch"}, ResourceNames: []string{"machines"},
	})
	log, lines := newLog()
	var mu sync.Mutex
	told := map[auth.ConfigMap]map[string]string{}
	calls := 0
	a := NewAuthorities(e.client, func(c auth.ConfigMap, data map[string]string) {
		mu.Lock()
		defer mu.Unlock()
		calls++
		told[c] = maps.Clone(data)
	}, log)
	machines, secret := auth.ConfigMap{Namespace: e.ns, Name: "machines"}, auth.ConfigMap{Namespace: e.ns, Name: "secret"}
	has := func(want string, present bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			data, known := told[machines]
			return known && (data != nil) == present && data["ca.crt"] == want
		}, patience, tick)
	}
	write := func(data string) {
		t.Helper()
		_, err := e.admin.CoreV1().ConfigMaps(e.ns).Update(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "machines"}, Data: map[string]string{"ca.crt": data},
		}, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	a.Want(map[auth.ConfigMap]bool{secret: true})
	a.Want(map[auth.ConfigMap]bool{machines: true}) // before it runs
	stop := run(t, a.Run)
	defer stop()
	has("", false)
	_, err := e.admin.CoreV1().ConfigMaps(e.ns).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "machines"}, Data: map[string]string{"ca.crt": "one"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	has("one", true)
	write("two")
	has("two", true)
	require.Zero(t, lines.count("secret"), "what is not wanted any more is not asked for")

	a.Want(map[auth.ConfigMap]bool{machines: true, secret: true})
	require.Eventually(t, func() bool { return lines.count("cannot be read") == 1 }, patience, tick, "it is not permitted")
	a.Want(nil)
	mu.Lock()
	before := calls
	clear(told)
	mu.Unlock()
	a.Want(map[auth.ConfigMap]bool{machines: true})
	has("two", true)
	write("three")
	has("three", true)
	mu.Lock()
	require.LessOrEqual(t, calls, before+2, "each state is told once")
	mu.Unlock()

	a.Want(nil)
	require.Eventually(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.watches) == 0
	}, patience, tick, "names that were named once take no room")
}
