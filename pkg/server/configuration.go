package server

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Configuration is the configuration of one trench as nsp.v1.ConfigurationManager tells it. Nothing is told before the first
// Set. A watcher is woken only when its own answer changed.
type Configuration struct {
	answers *feed.Board[query, []byte]

	mu      sync.Mutex // held while publishing, so that whoever comes in between sees all of one version
	rev     uint64
	current *resources // nil before the first Set
	// flows are those that are configured, limits narrow them. awaiting says that they are not known yet.
	flows    []*nspv1.Flow
	limits   map[streamName]*sources.Set
	awaiting bool
}

// NewConfiguration makes a configuration that is not known yet.
func NewConfiguration() *Configuration {
	return &Configuration{answers: feed.NewBoard[query](bytes.Equal)}
}

// Set replaces the configuration; nil is that of a trench which has none. What depends on a key that was never read well is
// not told, or stays as it was told.
func (c *Configuration) Set(cfg *config.Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = resolve(cfg)
	c.flows = c.current.flows
	c.publishAll()
}

// publishAll tells everybody whose answer has changed.
func (c *Configuration) publishAll() {
	c.rev++
	if c.current != nil {
		c.current.flows = limited(c.flows, c.limits)
	}
	for _, q := range c.answers.Keys() {
		c.publish(q)
	}
}

// watch starts a watcher, which must be closed. Its answer is encoded once for all watchers of equal queries.
func (c *Configuration) watch(q query) *feed.Watcher[query, []byte] {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.answers.Watch(q)
	c.publish(q)
	return w
}

func (c *Configuration) publish(q query) {
	if c.current == nil || c.current.unread[q.kind] || c.awaiting && q.kind == kindFlow {
		return
	}
	wire, err := proto.Marshal(c.current.answer(q))
	if err != nil {
		panic(fmt.Sprintf("encoding the configuration: %v", err)) // all strings were read as valid UTF-8
	}
	c.answers.Set(q, c.rev, wire)
}

// Configurations are those of several trenches. The zero value has none. It is safe for concurrent use.
type Configurations struct {
	mu  sync.Mutex
	all map[string]*Configuration
}

// Set replaces the configuration of a trench, as Configuration.Set does.
func (c *Configurations) Set(trench string, cfg *config.Config) { c.of(trench).Set(cfg) }

func (c *Configurations) of(trench string) *Configuration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[string]*Configuration)
	}
	if c.all[trench] == nil {
		c.all[trench] = NewConfiguration()
	}
	return c.all[trench]
}

// configurationManager tells the configuration of the trench as Meridio 1.x does.
type configurationManager struct {
	nspv1.UnimplementedConfigurationManagerServer
	server *Server
}

// configuration is the one that a caller asks for.
func (m *configurationManager) configuration(c auth.Caller, trench string) (*Configuration, error) {
	cfg := &m.server.cfg
	switch {
	case cfg.Configuration != nil:
		return cfg.Configuration, nil
	case c.Target.UID == "":
		return nil, auth.Deny(auth.NoRole, "the process of the trench tells the configuration; this one tells it ExternalTargets only")
	case trench == "":
		return nil, invalid("the filter must name the trench")
	}
	if err := cfg.permitTarget(c.Target, stream.Key{Namespace: cfg.Namespace, Trench: trench}); err != nil {
		return nil, err
	}
	return cfg.Configurations.of(trench), nil
}

// watch answers one call. Each message is a whole answer, so there is no heartbeat.
func (m *configurationManager) watch(ctx context.Context, t *nspv1.Trench, q query, send func(any) error) error {
	for _, name := range q.names {
		if len(name) > maxName {
			return fmt.Errorf("watching the configuration: %w", invalid("a name in the filter has more than %d characters: nothing is called that", maxName))
		}
	}
	configuration, err := m.configuration(auth.From(ctx), t.GetName())
	if err != nil {
		return fmt.Errorf("watching the configuration: %w", err)
	}
	answers := configuration.watch(q)
	defer answers.Close()
	return m.server.watch(ctx, &configurationWatch{answers: answers, send: send})
}

// configurationWatch is one watch of the configuration.
type configurationWatch struct {
	answers *feed.Watcher[query, []byte]
	send    func(any) error
}

func (w *configurationWatch) next() (bool, <-chan struct{}, error) {
	wire, _, ok, more := w.answers.Next()
	if !ok {
		return false, more, nil
	}
	return true, more, w.send(frame{wire})
}

func (w *configurationWatch) heartbeat() error { return nil }

// WatchTrench implements nspv1.ConfigurationManagerServer.
func (m *configurationManager) WatchTrench(f *nspv1.Trench, ss grpc.ServerStreamingServer[nspv1.TrenchResponse]) error {
	return m.watch(ss.Context(), f, queryTrench(f), ss.SendMsg)
}

// WatchConduit implements nspv1.ConfigurationManagerServer.
func (m *configurationManager) WatchConduit(f *nspv1.Conduit, ss grpc.ServerStreamingServer[nspv1.ConduitResponse]) error {
	return m.watch(ss.Context(), f.GetTrench(), queryConduit(f), ss.SendMsg)
}

// WatchStream implements nspv1.ConfigurationManagerServer.
func (m *configurationManager) WatchStream(f *nspv1.Stream, ss grpc.ServerStreamingServer[nspv1.StreamResponse]) error {
	return m.watch(ss.Context(), f.GetConduit().GetTrench(), queryStream(f), ss.SendMsg)
}

// WatchFlow implements nspv1.ConfigurationManagerServer.
func (m *configurationManager) WatchFlow(f *nspv1.Flow, ss grpc.ServerStreamingServer[nspv1.FlowResponse]) error {
	return m.watch(ss.Context(), f.GetStream().GetConduit().GetTrench(), queryFlow(f), ss.SendMsg)
}

// WatchVip implements nspv1.ConfigurationManagerServer.
func (m *configurationManager) WatchVip(f *nspv1.Vip, ss grpc.ServerStreamingServer[nspv1.VipResponse]) error {
	return m.watch(ss.Context(), f.GetTrench(), queryVip(f), ss.SendMsg)
}

// WatchAttractor implements nspv1.ConfigurationManagerServer.
func (m *configurationManager) WatchAttractor(f *nspv1.Attractor, ss grpc.ServerStreamingServer[nspv1.AttractorResponse]) error {
	return m.watch(ss.Context(), f.GetTrench(), queryAttractor(f), ss.SendMsg)
}

// WatchGateway implements nspv1.ConfigurationManagerServer.
func (m *configurationManager) WatchGateway(f *nspv1.Gateway, ss grpc.ServerStreamingServer[nspv1.GatewayResponse]) error {
	return m.watch(ss.Context(), f.GetTrench(), queryGateway(f), ss.SendMsg)
}
