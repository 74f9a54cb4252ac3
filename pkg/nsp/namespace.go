package nsp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/kube"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
	"github.com/nordix/meridio-nsp/pkg/server"
)

// RunNamespace runs a namespace process until ctx ends. The configuration must be valid.
func RunNamespace(ctx context.Context, cfg NamespaceConfig, log *slog.Logger) error {
	n := &namespace{cfg: cfg, log: log, metrics: newMetrics()}
	defer n.close()
	for _, step := range []func(context.Context) error{n.openRegistry, n.connect, n.assemble, n.listen} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	log.InfoContext(ctx, "serving", "version", Version, "namespace", cfg.Namespace, "address", n.grpcListener.Addr().String(),
		"transport", cfg.Transport, "authorisation", cfg.Authorisation, "registrations", len(n.saved.Entries))
	n.server.Ready()
	return runStages(ctx, n.stages()...)
}

// namespace is a namespace process while it is put together.
type namespace struct {
	cfg     NamespaceConfig
	log     *slog.Logger
	metrics *metrics

	client   kubernetes.Interface
	registry *registry.Registry
	saved    registry.Saved
	sink     sink
	engine   *engine.Engine
	source   *kube.Source
	configs  *kube.Configs
	status   *kube.Status
	server   *server.Server

	grpcListener, metricsListener, healthListener net.Listener

	// closers are called in reverse at the end.
	closers []func()
}

// sink breaks the circle of registry and engine: the engine is made of what the registry has loaded.
type sink struct{ engine *engine.Engine }

// Registered implements registry.Sink.
func (s *sink) Registered(ctx context.Context, changes []registry.Change) {
	s.engine.Registered(ctx, changes)
}

func (n *namespace) close() {
	for i := len(n.closers) - 1; i >= 0; i-- {
		n.closers[i]()
	}
}

func (n *namespace) onClose(f func()) { n.closers = append(n.closers, f) }

func (n *namespace) openRegistry(ctx context.Context) error {
	store, err := sqlite.Open(ctx, sqlite.Config{Path: n.cfg.Datasource, Log: n.log})
	if err != nil {
		return err
	}
	n.onClose(func() { _ = store.Close() })
	n.registry = registry.New(registry.Config{
		Store: store, Sink: &n.sink, Namespace: n.cfg.Namespace, Timeout: n.cfg.EntryTimeout, Log: n.log, Observe: n.metrics.round,
	})
	n.saved, err = n.registry.Load(ctx)
	if err != nil {
		return fmt.Errorf("loading the registry: %w", err)
	}
	return nil
}

func (n *namespace) connect(context.Context) error {
	rc, err := restConfig(n.cfg.Kubeconfig)
	if err != nil {
		return err
	}
	rc.UserAgent = "meridio-nsp/" + Version
	// Watches cost nothing here; status writes have a limiter of their own.
	rc.QPS, rc.Burst = 100, 200
	n.client, err = kubernetes.NewForConfig(rc)
	if err != nil {
		return fmt.Errorf("making a Kubernetes client: %w", err)
	}
	return nil
}

// restConfig says how to reach the API server: by the kubeconfig, or from inside a pod.
func restConfig(path string) (*rest.Config, error) {
	if path == "" {
		rc, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("not running in a pod: set --kubeconfig to reach a cluster from outside")
		}
		if err != nil {
			return nil, fmt.Errorf("reading the pod's own cluster configuration: %w", err)
		}
		return rc, nil
	}
	rc, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("reading --kubeconfig: %w", err)
	}
	return rc, nil
}

func (n *namespace) assemble(context.Context) error {
	post := poster{&n.sink}
	n.source = kube.NewSource(kube.SourceConfig{
		Client: n.client, Sink: post, Namespaces: []string{n.cfg.Namespace}, Log: n.log,
	})
	n.configs = kube.NewConfigs(kube.ConfigsConfig{
		Client: n.client, Sink: post, Namespace: n.cfg.Namespace, Save: n.registry.SaveDocument, Log: n.log,
	})
	n.status = kube.NewStatus(kube.StatusConfig{Client: n.client, Log: n.log})
	n.engine = engine.New(engine.Config{
		Namespace:    n.cfg.Namespace,
		Namespaces:   []string{n.cfg.Namespace},
		Assignment:   pool.Assignment(n.cfg.Assignment),
		ReadinessOff: !n.cfg.ReadinessPush,
		WantConfig:   n.configs.Want,
		Remember:     n.registry.Remember,
		Pools:        n.status.Pools,
		Committed:    n.metrics.committed,
	}, n.saved.Entries)
	n.sink.engine = n.engine
	for name, document := range n.saved.Documents {
		if trench, ok := kube.TrenchOf(name); ok {
			if err := n.configs.Preload(trench, document); err != nil {
				n.log.Warn("a stored configuration is unreadable; the cluster's counts", "trench", trench, "error", err)
			}
		}
	}
	n.metrics.registry.MustRegister(n.source, n.configs, n.status)
	return n.assembleServer() //nolint:contextcheck // a handshake brings its own
}

// poster posts to the engine once that is there.
type poster struct{ *sink }

// Post implements kube.Sink.
func (p poster) Post(events ...engine.Event) { p.engine.Post(events...) }

func (n *namespace) assembleServer() error {
	cfg := server.Config{
		Engine: n.engine, Registry: n.registry, Namespace: n.cfg.Namespace, Epoch: rand.Text()[:12],
		Auth: auth.Mode(n.cfg.Authorisation), Grace: n.cfg.ShutdownTimeout, Observer: n.metrics, Log: n.log,
	}
	switch n.cfg.Transport {
	case TLS:
		creds, stop, err := serverTLS(n.cfg.TLSCertFile, n.cfg.TLSKeyFile, n.cfg.TLSClientCA, reloadEvery)
		if err != nil {
			return err
		}
		n.onClose(stop)
		cfg.Credentials = creds
	default:
		n.log.Warn("the transport is plaintext: anybody on the way can read and change what is said; see --transport")
	}
	if cfg.Auth == auth.None {
		n.log.Warn("authorisation is off: every caller is believed; this is for development only")
	}
	n.server = server.New(cfg)
	return nil
}

func (n *namespace) listen(ctx context.Context) (err error) {
	n.grpcListener, err = n.listenOn(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(n.cfg.Port)))
	if err == nil && n.cfg.MetricsAddress != "" {
		n.metricsListener, err = n.listenOn(ctx, "tcp", n.cfg.MetricsAddress)
	}
	if err == nil && n.cfg.HealthSocket != "" {
		if rmErr := os.Remove(n.cfg.HealthSocket); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			return fmt.Errorf("removing the health socket of an earlier run: %w", rmErr)
		}
		n.healthListener, err = n.listenOn(ctx, "unix", n.cfg.HealthSocket)
	}
	return err
}

func (n *namespace) listenOn(ctx context.Context, network, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("opening the listener: %w", err)
	}
	n.onClose(func() { _ = l.Close() })
	return l, nil
}

// stages are what runs: the engine under the registry under the edges, so that at the end no call is answered by something
// that has ended.
func (n *namespace) stages() [][]component {
	edge := []component{
		{"cluster", n.source.Run},
		{"configuration", n.configs.Run},
		{"status", n.status.Run},
		{"gRPC", func(ctx context.Context) error { return n.server.Serve(ctx, n.grpcListener) }},
	}
	if n.metricsListener != nil {
		edge = append(edge, component{"metrics", func(ctx context.Context) error { return n.metrics.serve(ctx, n.metricsListener) }})
	}
	if n.healthListener != nil {
		edge = append(edge, component{"health", n.serveHealth})
	}
	return [][]component{{{"engine", n.engine.Run}}, {{"registry", n.registry.Run}}, edge}
}

// serveHealth answers probes on the unix socket, which needs no certificate.
func (n *namespace) serveHealth(ctx context.Context) error {
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, n.server.Health())
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	if err := s.Serve(n.healthListener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving health on %s: %w", n.cfg.HealthSocket, err)
	}
	return nil
}
