package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// documentPrefix begins the names of the documents that Save is given.
const documentPrefix = "configmap/"

// TrenchOf is the trench whose configuration a saved document is.
func TrenchOf(document string) (trench string, ok bool) {
	return strings.CutPrefix(document, documentPrefix)
}

// ConfigsConfig configures Configs.
type ConfigsConfig struct {
	Client kubernetes.Interface
	Sink   Sink
	// Namespace is the NSP's own, in which the ConfigMaps are.
	Namespace string
	// Save keeps a document for Preload after a restart; nil keeps none. It must not block.
	Save func(name string, data []byte)
	// Read is told what the configuration of a trench is whenever that was read, nil where it has none; optional. It must not block.
	Read func(trench string, cfg *config.Config)
	Log  *slog.Logger
}

// Configs posts TrenchConfigured for every trench that is wanted, once its ConfigMap was read or is known to be absent, and
// whenever it says something else. It is a prometheus.Collector.
type Configs struct {
	cfg ConfigsConfig

	mu       sync.Mutex // held while posting, so that events keep their order
	trenches map[string]*trenchConfig
	start    func(*trenchConfig) // nil unless Run runs
}

// trenchConfig is what is known of one trench, guarded by the mutex of Configs.
type trenchConfig struct {
	name  string
	watch *ConfigMapWatch // nil unless wanted
	// stop ends the watch, dropped says that it was meant to end.
	stop    context.CancelFunc
	dropped bool
	// live is set once the API server was heard: what was stored is older.
	live   bool
	book   config.Book
	posted *engine.TrenchConfigured // nil before the first event
}

// NewConfigs makes Configs.
func NewConfigs(cfg ConfigsConfig) *Configs {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Save == nil {
		cfg.Save = func(string, []byte) {}
	}
	return &Configs{cfg: cfg, trenches: make(map[string]*trenchConfig)}
}

// Want adds a trench. It may be called at any time and as often as one likes, and does not block.
func (c *Configs) Want(trench string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.trench(trench)
	if t.watch != nil {
		return
	}
	t.watch = &ConfigMapWatch{Client: c.cfg.Client, Namespace: c.cfg.Namespace, Name: config.MapName(trench), Log: c.cfg.Log,
		Changed: func(data map[string]string, present bool) { c.changed(t, data, present) }}
	if c.start != nil {
		c.start(t)
	}
}

// Drop takes Want back and forgets what is known and stored of the trench. It does not block.
func (c *Configs) Drop(trench string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.trenches[trench]
	if t == nil {
		return
	}
	delete(c.trenches, trench)
	t.dropped = true
	if t.stop != nil {
		t.stop()
	}
	c.cfg.Save(documentPrefix+trench, nil)
}

// Preload takes a saved document as read, unless the API server has told more already. An error says that it is damaged.
func (c *Configs) Preload(trench string, document []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.trench(trench)
	if t.live {
		return nil
	}
	if err := t.book.Restore(document); err != nil {
		return fmt.Errorf("trench %s: %w", trench, err)
	}
	c.post(t)
	return nil
}

// Run watches until ctx ends, and then returns nil.
func (c *Configs) Run(ctx context.Context) error {
	var watches sync.WaitGroup
	c.mu.Lock()
	c.start = func(t *trenchConfig) {
		if len(validation.IsDNS1123Subdomain(t.watch.Name)) > 0 {
			t.book.Absent()
			c.post(t) // no object can have that name, so there is no need to ask for one
			return
		}
		ctx, stop := context.WithCancel(ctx)
		t.stop = stop
		watches.Go(func() { defer stop(); _ = t.watch.Run(ctx) })
	}
	for _, t := range c.trenches {
		if t.watch != nil {
			c.start(t)
		}
	}
	c.mu.Unlock()

	<-ctx.Done()
	c.mu.Lock()
	c.start = nil
	c.mu.Unlock()
	watches.Wait()
	return nil
}

func (c *Configs) trench(name string) *trenchConfig {
	t := c.trenches[name]
	if t == nil {
		t = &trenchConfig{name: name}
		c.trenches[name] = t
	}
	return t
}

func (c *Configs) changed(t *trenchConfig, data map[string]string, present bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.dropped {
		return
	}
	t.live = true
	if ReadBook(&t.book, config.MapName(t.name), data, present, c.cfg.Log.With("namespace", c.cfg.Namespace)) {
		c.cfg.Save(documentPrefix+t.name, t.book.Document())
	}
	c.post(t)
}

// ReadBook takes what ConfigMapWatch.Changed says of the ConfigMap of this name into the book, and logs what is wrong. It reports
// whether the book has another document than before.
func ReadBook(b *config.Book, name string, data map[string]string, present bool, log *slog.Logger) (news bool) {
	log = log.With("configmap", name)
	if !present {
		if c, _ := b.Config(); c != nil {
			log.Warn("the ConfigMap is gone; its last good configuration stays")
		}
		return b.Absent()
	}
	news, errs := b.Read(data)
	for _, err := range errs {
		log.Warn("a key of the ConfigMap is malformed; its last good value stays", "error", err)
	}
	// In Meridio 1.x nobody compares. What is inside is served as it is; the registry of a namespace goes by the name.
	if c, _ := b.Config(); c.NamesAnother(name) {
		log.Warn("the ConfigMap is named for another trench than the one that it describes; clients of neither are served well",
			"trench", c.Trench.Name)
	}
	return news
}

// post tells the sink what is new. Of streams that were never read well nothing is said.
func (c *Configs) post(t *trenchConfig) {
	ev := engine.TrenchConfigured{Trench: t.name, MaxTargets: map[stream.Key]uint32{}, Flows: map[stream.Key][]pool.Flow{}}
	last, read := t.book.Config()
	if read && c.cfg.Read != nil {
		c.cfg.Read(t.name, last)
	}
	if last != nil {
		if !last.IsRead(config.KeyStreams) {
			return
		}
		ev.MaxTargets = last.MaxTargets(c.cfg.Namespace, t.name)
		ev.Flows = flowsOf(last.FlowsOf(c.cfg.Namespace, t.name))
	}
	if t.posted == nil || !reflect.DeepEqual(*t.posted, ev) {
		t.posted = &ev
		c.cfg.Sink.Post(ev)
	}
}

// flowsOf is what of the flows matters to pools; nil stays nil.
func flowsOf(all map[stream.Key][]config.Flow) map[stream.Key][]pool.Flow {
	if all == nil {
		return nil
	}
	flows := make(map[stream.Key][]pool.Flow, len(all))
	for k, some := range all {
		flows[k] = nil
		for _, f := range some {
			flows[k] = append(flows[k], pool.Flow{Name: f.Name, Protocols: f.Protocols, Ports: f.DestinationPortRanges})
		}
	}
	return flows
}

var configAgeDesc = prometheus.NewDesc("nsp_configuration_state_age_seconds",
	"Time since the API server last said anything of the ConfigMap of a trench.", []string{"trench"}, nil)

// Describe implements prometheus.Collector.
func (c *Configs) Describe(descs chan<- *prometheus.Desc) { descs <- configAgeDesc }

// Collect implements prometheus.Collector.
func (c *Configs) Collect(metrics chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, t := range c.trenches {
		if t.watch != nil {
			gauge(metrics, configAgeDesc, t.watch.Age().Seconds(), name)
		}
	}
}
