package nsp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/listener"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/server"
)

// process is what the processes of the NSP have in common, while one of them is put together.
type process struct {
	common  ProcessConfig
	log     *slog.Logger
	metrics *metrics

	client    kubernetes.Interface
	dynamic   dynamic.Interface
	transport transport
	// accepted are clients without a SPIFFE ID that the transport lets in; nil for none.
	accepted *auth.Targets
	tokens   *auth.Tokens
	departed auth.Departed
	store    *datasource
	registry *registry.Registry
	saved    registry.Saved
	sink     sink
	engine   *engine.Engine
	server   *server.Server

	grpcListener, metricsListener, healthListener net.Listener

	// closers are called in reverse at the end.
	closers []func()
}

func newProcess(cfg ProcessConfig, log *slog.Logger) *process {
	return &process{common: cfg, log: log, metrics: newMetrics()}
}

// take takes steps until one fails.
func (p *process) take(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sink breaks the circle of registry and engine: the engine is made of what the registry has loaded.
type sink struct{ engine *engine.Engine }

// Registered implements registry.Sink.
func (s *sink) Registered(ctx context.Context, changes []registry.Change) {
	s.engine.Registered(ctx, changes)
}

// poster posts to the engine once that is there.
type poster struct{ *sink }

// Post implements kube.Sink.
func (p poster) Post(events ...engine.Event) { p.engine.Post(events...) }

func (p *process) close() {
	for i := len(p.closers) - 1; i >= 0; i-- {
		p.closers[i]()
	}
}

func (p *process) onClose(f func()) { p.closers = append(p.closers, f) }

// openTransport comes before openRegistry: it may wait for an SVID, and leases begin when the registry is loaded.
func (p *process) openTransport(ctx context.Context) (err error) {
	p.transport, err = openTransport(ctx, p.common.TransportConfig, p.common.TrustDomain, p.accepted, p.metrics, p.log)
	if err == nil {
		p.onClose(p.transport.close)
	}
	return err
}

// openStore opens the registry file, or goes on without.
func (p *process) openStore(ctx context.Context) error {
	p.store = &datasource{
		path: p.common.Datasource, namespace: p.common.Namespace, log: p.log, working: p.metrics.storing,
	}
	if err := p.store.open(ctx); err != nil {
		return err
	}
	p.onClose(func() { _ = p.store.Close() })
	return nil
}

func (p *process) openRegistry(ctx context.Context) error {
	if err := p.openStore(ctx); err != nil {
		return err
	}
	p.registry = registry.New(registry.Config{
		Store: p.store, Sink: &p.sink, Namespace: p.common.Namespace, Timeout: p.common.EntryTimeout, Log: p.log,
		Observe: p.metrics.round, Gone: p.departed.Gone,
		MostPerPod: p.common.MaxRegistrationsPerPod, MostPerPeer: p.common.MaxRegistrationsPerPeer,
	})
	var err error
	p.saved, err = p.registry.Load(ctx)
	if err != nil {
		return fmt.Errorf("loading the registry: %w", err)
	}
	if !p.rebuilding() {
		p.keepTrying(p.registry)
	}
	return nil
}

// keepTrying has the owner of a store that cannot be written to write to it, which it does until that succeeds, although nobody
// registers.
func (p *process) keepTrying(owner documents) {
	if !p.store.isOpen() {
		owner.SaveDocument(rebuildingDocument, nil)
	}
}

// documents are kept with the registrations.
type documents interface {
	SaveDocument(name string, data []byte)
}

func (p *process) connect(context.Context) error {
	rc, err := RESTConfig(p.common.Kubeconfig)
	if err != nil {
		return err
	}
	rc.UserAgent = "meridio-nsp/" + Version
	// Watches cost nothing here; status writes have a limiter of their own.
	rc.QPS, rc.Burst = 100, 200
	// A slice has 100 endpoints, and reading one in JSON takes longer than all that follows.
	rc.ContentType = runtime.ContentTypeProtobuf
	rc.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	p.client, err = kubernetes.NewForConfig(rc)
	if err != nil {
		return fmt.Errorf("making a Kubernetes client: %w", err)
	}
	p.dynamic, err = dynamic.NewForConfig(rc)
	if err != nil {
		return fmt.Errorf("making a Kubernetes client for custom resources: %w", err)
	}
	return nil
}

// RESTConfig says how to reach the API server: by the kubeconfig, or from inside a pod.
func RESTConfig(path string) (*rest.Config, error) {
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

// makeEngine makes the engine of what was stored; the configuration says what is particular to the process.
func (p *process) makeEngine(cfg engine.Config) {
	cfg.Namespace, cfg.Remember, cfg.Committed = p.common.Namespace, p.registry.Remember, p.metrics.committed
	cfg.Rebuilding, cfg.Listed = p.rebuilding(), p.podListed
	p.engine = engine.New(cfg, p.saved.Entries)
	p.sink.engine = p.engine
}

// makeServer makes the server; the configuration says what is particular to the process.
func (p *process) makeServer(cfg server.Config) error {
	cfg.Credentials, cfg.Namespace, cfg.Epoch, cfg.Grace = p.transport.server, p.common.Namespace, rand.Text()[:12], p.common.ShutdownTimeout
	cfg.Observer, cfg.Log = p.metrics, p.log
	if err := p.authorise(&cfg); err != nil {
		return err
	}
	p.server = server.New(cfg)
	p.metrics.registry.MustRegister(&live{engine: p.engine, server: p.server})
	return nil
}

func (p *process) listen(ctx context.Context) (err error) {
	p.grpcListener, err = p.listenOn(ctx, net.JoinHostPort("", strconv.Itoa(p.common.Port)))
	if err == nil && p.common.MetricsAddress != "" {
		p.metricsListener, err = p.listenOn(ctx, p.common.MetricsAddress)
	}
	if err == nil && p.common.HealthSocket != "" {
		if p.healthListener, err = listener.Unix(ctx, p.common.HealthSocket); err != nil {
			return fmt.Errorf("--health-socket: %w", err)
		}
		p.onClose(func() { _ = p.healthListener.Close() })
	}
	return err
}

func (p *process) listenOn(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("opening the listener: %w", err)
	}
	p.onClose(func() { _ = l.Close() })
	return l, nil
}

// stages are what runs: the engine under the registry under the edges, so that at the end no call is answered by something
// that has ended.
func (p *process) stages(edge ...component) [][]component {
	edge = p.edge(edge...)
	if p.rebuilding() {
		edge = append(edge, component{"rebuild", p.rebuild})
	}
	return [][]component{{{"engine", p.engine.Run}}, {{"registry", p.registry.Run}}, edge}
}

// edge is what faces the network.
func (p *process) edge(edge ...component) []component {
	edge = append(edge, component{"gRPC", func(ctx context.Context) error { return p.server.Serve(ctx, p.grpcListener) }})
	if p.metricsListener != nil {
		edge = append(edge, component{"metrics", func(ctx context.Context) error {
			return listener.ServeHTTP(ctx, p.metrics.handler(), p.metricsListener)
		}})
	}
	if p.healthListener != nil {
		edge = append(edge, component{"health", p.serveHealth})
	}
	return edge
}

// serveHealth answers probes on the unix socket, which needs no certificate.
func (p *process) serveHealth(ctx context.Context) error {
	s := grpc.NewServer(grpc.ConnectionTimeout(listener.GreetWithin))
	grpc_health_v1.RegisterHealthServer(s, p.server.Health())
	return listener.ServeGRPC(ctx, s, p.healthListener)
}
