package kube

import (
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

const trench = "trench-a"

// documents is a store for Save.
type documents struct {
	mu    sync.Mutex
	byKey map[string]string
}

func (d *documents) save(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byKey == nil {
		d.byKey = make(map[string]string)
	}
	if data == nil {
		delete(d.byKey, name)
		return
	}
	d.byKey[name] = string(data)
}

func (d *documents) all() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.byKey)
}

func (e *env) configs(posted *sink, saved *documents) (*Configs, *logs) {
	log, lines := newLog()
	return NewConfigs(ConfigsConfig{Client: e.client, Sink: posted, Namespace: e.ns, Save: saved.save, Log: log}), lines
}

func (e *env) writeConfig(t *testing.T, data map[string]string) {
	t.Helper()
	_, err := e.admin.CoreV1().ConfigMaps(e.ns).Update(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: config.MapName(trench)}, Data: data}, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func (e *env) createConfig(t *testing.T, data map[string]string) {
	t.Helper()
	_, err := e.admin.CoreV1().ConfigMaps(e.ns).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: config.MapName(trench)}, Data: data}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func streams(most string) map[string]string {
	return map[string]string{"trench": "name: trench-a\n",
		"streams": "items:\n- name: stream-a\n  conduit: conduit-a\n  max-targets: " + most + "\n"}
}

func (e *env) configured(most ...uint32) engine.Event {
	ev := engine.TrenchConfigured{Trench: trench, MaxTargets: map[stream.Key]uint32{}, Flows: map[stream.Key][]pool.Flow{}}
	for _, n := range most {
		k := stream.Key{Namespace: e.ns, Trench: trench, Conduit: "conduit-a", Name: "stream-a"}
		ev.MaxTargets[k], ev.Flows[k] = n, nil
	}
	return ev
}

// The life of a configuration, seen with no other permission than to watch that one ConfigMap.
func TestConfigsLife(t *testing.T) {
	e := newEnv(t, readConfig(trench))
	posted, saved := &sink{}, &documents{}
	c, lines := e.configs(posted, saved)
	c.Want(trench)
	c.Want(trench)
	stop := run(t, c.Run)
	require.Equal(t, e.configured(), posted.take(t, 1)[0], "absent, and known to be")
	require.Equal(t, map[string]string{"configmap/trench-a": "null"}, saved.all())

	e.createConfig(t, streams("5"))
	require.Equal(t, e.configured(5), posted.take(t, 1)[0])

	malformed := streams("-1")
	malformed["vips"] = "items:\n- name: vip-a\n"
	e.writeConfig(t, malformed)
	require.Eventually(t, func() bool { return lines.count("malformed") == 1 }, patience, tick)
	require.Equal(t, 1, lines.count("configmap=meridio-configuration-trench-a error=\"key streams"))
	require.Empty(t, posted.all(), "the last good value stays")
	require.JSONEq(t, `{"trench":"name: trench-a\n","streams":"items:\n- name: stream-a\n  conduit: conduit-a\n  max-targets: 5\n","vips":"items:\n- name: vip-a\n"}`,
		saved.all()["configmap/trench-a"], "what is stored is good, and has the other key of the same write")

	require.NoError(t, e.admin.CoreV1().ConfigMaps(e.ns).Delete(t.Context(), config.MapName(trench), metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return lines.count("is gone") == 1 }, patience, tick)
	require.Empty(t, posted.all(), "a deleted configuration stays")

	e.createConfig(t, streams("7"))
	require.Equal(t, e.configured(7), posted.take(t, 1)[0])
	require.Equal(t, 1, series(t, c))

	// A cut watch comes back, and what happened meanwhile is told once.
	e.gate.set(false)
	require.Eventually(t, func() bool { return lines.count("cannot be read") == 1 }, patience, tick)
	e.writeConfig(t, streams("8"))
	require.Empty(t, posted.all())
	e.gate.set(true)
	require.Equal(t, e.configured(8), posted.take(t, 1)[0])
	require.Equal(t, 1, lines.count("can be read again"))
	stop()

	// After a restart without API server the stored one counts.
	e.gate.set(false)
	again := &sink{}
	c, lines = e.configs(again, &documents{})
	for name, data := range saved.all() {
		trench, ok := TrenchOf(name)
		require.True(t, ok)
		require.NoError(t, c.Preload(trench, []byte(data)))
	}
	run(t, c.Run)
	c.Want(trench)
	require.Equal(t, e.configured(8), again.take(t, 1)[0])
	require.Eventually(t, func() bool { return lines.count("cannot be read") == 1 }, patience, tick)
	e.gate.set(true)
	require.Eventually(t, func() bool { return lines.count("can be read again") == 1 }, patience, tick)
	require.Empty(t, again.all(), "the same as stored")
	require.NoError(t, c.Preload(trench, []byte("null")), "too late")
	require.Empty(t, again.all())
}

// A key that was never read well is not answered, and neither after a restart.
func TestConfigsNeverReadWell(t *testing.T) {
	e := newEnv(t, readConfig(trench))
	e.createConfig(t, map[string]string{"streams": "items: 7"})
	posted, saved := &sink{}, &documents{}
	c, lines := e.configs(posted, saved)
	run(t, c.Run)
	c.Want(trench)
	require.Eventually(t, func() bool { return len(saved.all()) == 1 }, patience, tick)
	require.Equal(t, 1, lines.count("malformed"))
	require.Empty(t, posted.all())

	restarted := &sink{}
	r, _ := e.configs(restarted, &documents{})
	require.NoError(t, r.Preload(trench, []byte(saved.all()["configmap/trench-a"])))
	require.Empty(t, restarted.all())
	require.Error(t, r.Preload(trench, []byte("{")))

	e.writeConfig(t, streams("5"))
	require.Equal(t, e.configured(5), posted.take(t, 1)[0])
}

// The registry goes by the name of the ConfigMap, its readers by what is in it: where these differ somebody has to be told.
func TestConfigMapOfAnotherTrench(t *testing.T) {
	var b config.Book
	log, lines := newLog()
	read := func(name, text string) { ReadBook(&b, name, map[string]string{config.KeyTrench: text}, true, log) }
	read(config.MapName(trench), "name: "+trench)
	read(config.MapName(trench), "")
	read("meridio-configuration", "name: trench-b")
	require.Zero(t, lines.count("another trench"))
	read(config.MapName(trench), "name: trench-b")
	require.Equal(t, 1, lines.count("another trench"))
	require.Equal(t, 1, lines.count("configmap=meridio-configuration-trench-a trench=trench-b"))
}

// A trench that is dropped costs nothing any more, and begins anew when it is wanted again.
func TestConfigsDropped(t *testing.T) {
	e := newEnv(t, readConfig(trench))
	posted, saved := &sink{}, &documents{}
	c, _ := e.configs(posted, saved)
	run(t, c.Run)
	c.Want(trench)
	require.Equal(t, e.configured(), posted.take(t, 1)[0])
	c.mu.Lock()
	old := c.trenches[trench]
	c.mu.Unlock()
	c.Drop(trench)
	c.Drop("unknown")
	require.Empty(t, saved.all())
	require.Zero(t, series(t, c))
	old.watch.Changed(streams("5"), true) // was on its way
	require.Empty(t, posted.all())

	c.Want(trench)
	require.Equal(t, e.configured(), posted.take(t, 1)[0], "told again, though it is the same")
}

// A name that no ConfigMap can have is known to be absent, without a word to the API server.
func TestConfigsOfImpossibleName(t *testing.T) {
	posted := &sink{}
	c := NewConfigs(ConfigsConfig{Sink: posted, Namespace: "red"})
	c.Want("early\n")
	run(t, c.Run)
	c.Want("no/such thing")
	c.Want(strings.Repeat("x", 1000))
	for _, ev := range posted.take(t, 3) {
		require.Empty(t, as[engine.TrenchConfigured](t, ev).MaxTargets)
	}
}

func TestConfigsRoleMissingThenGiven(t *testing.T) {
	e := newEnv(t)
	posted := &sink{}
	c, lines := e.configs(posted, &documents{})
	c.Want(trench)
	run(t, c.Run)
	require.Eventually(t, func() bool { return lines.count("fault=Forbidden") == 1 }, patience, tick)
	e.grant(t, e.ns, readConfig(trench))
	require.Equal(t, e.configured(), posted.take(t, 1)[0])
	require.Equal(t, 1, lines.count("cannot be read"), "one line, however many tries")
}

// Whoever passes a configuration on has what was stored and what was read.
func TestConfigsAreReadOut(t *testing.T) {
	var read []string
	c := NewConfigs(ConfigsConfig{Sink: &sink{}, Namespace: "red", Read: func(trench string, cfg *config.Config) {
		read = append(read, trench)
		if cfg != nil {
			read = append(read, cfg.Trench.Name)
		}
	}})
	require.NoError(t, c.Preload(trench, []byte(`{"trench":"name: trench-a\n"}`)))
	require.Equal(t, []string{trench, "trench-a"}, read)
	c.Want("trench-b")
	c.changed(c.trenches["trench-b"], nil, false)
	require.Equal(t, []string{trench, "trench-a", "trench-b"}, read, "there is none, which is known too")
}
