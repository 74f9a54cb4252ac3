package nsp

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/kube"
	"github.com/nordix/meridio-nsp/pkg/relay"
	"github.com/nordix/meridio-nsp/pkg/server"
)

// DefaultConfigMap is the name of the ConfigMap where none is configured, as in Meridio 1.x.
const DefaultConfigMap = "meridio-configuration"

// TrenchConfig configures a trench process. Its fields are the flags of "nsp trench".
type TrenchConfig struct {
	ProcessConfig
	LinkConfig

	// ConfigMapName is the ConfigMap with the configuration of the trench.
	ConfigMapName string
}

// Validate says, in sentences, all that has to be changed.
func (c *TrenchConfig) Validate() error {
	err := errors.Join(c.ProcessConfig.Validate(), c.validateAuth(c.trenchMode()), c.validateLink())
	if len(validation.IsDNS1123Subdomain(c.ConfigMapName)) > 0 {
		err = errors.Join(err, errors.New("--config-map-name is no name of a ConfigMap: write it as "+config.MapName("trench-a")))
	}
	return err
}

// trenchName is the name of the trench where its configuration does not say, empty where the ConfigMap's name does not either.
func (c *TrenchConfig) trenchName() string {
	name, _ := config.TrenchOf(c.ConfigMapName)
	return name
}

// RunTrench runs a trench process until ctx ends. The configuration must be valid.
func RunTrench(ctx context.Context, cfg TrenchConfig, log *slog.Logger) error {
	t := newTrench(cfg, log)
	defer t.close()
	open := t.openOwn
	if cfg.relaying() {
		open = t.openRelay
	}
	if err := t.take(ctx, t.connect, t.openTransport, open, t.assemble, t.listen); err != nil {
		return err
	}
	t.restore()
	log.InfoContext(ctx, "serving", "version", Version, "namespace", cfg.Namespace, "configmap", cfg.ConfigMapName,
		"address", t.grpcListener.Addr().String(), "transport", cfg.transportName(), "authorisation", cfg.trenchMode(), "registrations", len(t.saved.Entries))
	watch := component{"configuration", t.watch.Run}
	if cfg.relaying() {
		return runStages(ctx, []component{{"relay", t.relay.Run}}, t.edge(watch))
	}
	return runStages(ctx, t.stages(watch)...)
}

// trench is a trench process while it is put together.
type trench struct {
	*process
	cfg TrenchConfig

	// relay is nil where the process stands alone.
	relay *relay.Relay
	// documents keeps the configuration for the next start.
	documents documents

	watch *kube.ConfigMapWatch
	// configuration is what watchers are told, own what the engine is, where there is one.
	configuration *server.Configuration
	own           *ownTrench

	// book is used by restore, and then by the watch only.
	book config.Book
	// open lets the first call in.
	open func()
}

func newTrench(cfg TrenchConfig, log *slog.Logger) *trench {
	return &trench{process: newProcess(cfg.ProcessConfig, log), cfg: cfg, configuration: server.NewConfiguration()}
}

func (t *trench) assemble(context.Context) error {
	t.watch = &kube.ConfigMapWatch{
		Client: t.client, Namespace: t.cfg.Namespace, Name: t.cfg.ConfigMapName, Log: t.log, Changed: t.changed,
	}
	t.metrics.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nsp_configuration_state_age_seconds", Help: "Time since the API server last said anything of the ConfigMap of a trench.",
		ConstLabels: prometheus.Labels{"trench": cmp.Or(t.cfg.trenchName(), t.cfg.ConfigMapName)},
	}, func() float64 { return t.watch.Age().Seconds() }))
	t.openTokens(t.cfg.trenchMode(), t.documents.SaveDocument)
	if t.relay == nil {
		t.own = newOwnTrench(t.cfg.Namespace, t.cfg.trenchName(), poster{&t.sink}.Post)
		t.makeEngine(engine.Config{ReadinessOff: true, WantConfig: t.own.want, DropConfig: t.own.drop})
	}
	opened := make(chan struct{})
	t.open = sync.OnceFunc(func() { t.server.Ready(); close(opened) })
	targets, registry := t.targets()
	return t.makeServer(server.Config{
		Targets: targets, Registry: registry, Configuration: t.configuration, Opened: opened, Auth: t.cfg.trenchMode(),
	})
}

// document is the name under which the configuration is stored with the registry.
func (t *trench) document() string { return "trench-configmap/" + t.cfg.ConfigMapName }

// restore takes the configuration of the last run as read, so that a restart needs no API server.
func (t *trench) restore() {
	document, ok := t.saved.Documents[t.document()]
	if !ok {
		return
	}
	if err := t.book.Restore(document); err != nil {
		t.log.Warn("the stored configuration is unreadable; the cluster's counts", "error", err)
		return
	}
	t.tell()
}

// changed takes in what the cluster says. It is called by the watch only.
func (t *trench) changed(data map[string]string, present bool) {
	if kube.ReadBook(&t.book, t.cfg.ConfigMapName, data, present, t.log.With("namespace", t.cfg.Namespace)) {
		t.documents.SaveDocument(t.document(), t.book.Document())
	}
	t.tell()
}

// tell hands the configuration to all that depend on it, and lets the first call in once they have it.
func (t *trench) tell() {
	c, _ := t.book.Config()
	if t.own != nil {
		t.own.configure(c)
	}
	t.configuration.Set(c)
	t.open()
}
