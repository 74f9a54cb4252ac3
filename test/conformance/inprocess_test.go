package conformance

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	"github.com/nordix/meridio-nsp/pkg/server"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Each recorded scenario, played against our server in its own time, which costs none.
func TestRecordedScenarios(t *testing.T) {
	all, err := Transcripts()
	require.NoError(t, err)
	for name, tr := range all {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sc := scenarioOf(name)
				s := startInProcess(t, sc, tr.initial(all))
				start := time.Now()
				r := &Replay{
					Target: s, Transcript: tr, Lateness: sc.timeout / 8,
					Until: func(at time.Duration) { time.Sleep(time.Until(start.Add(at))) },
					Await: func(condition func() bool) bool { synctest.Wait(); return condition() },
				}
				require.NoError(t, r.Run(t.Context()))
				requireDeparturesOnly(t, r)
			})
		})
	}
}

// requireDeparturesOnly checks that the answers differ from the recorded ones in the calls of the departures, and in no others.
func requireDeparturesOnly(t *testing.T, r *Replay) {
	departed := make(map[int]string)
	for _, d := range Departures {
		for _, call := range d.Calls[r.Transcript.Name] {
			departed[call] = d.Name
		}
	}
	differences := r.Differences()
	for call, what := range differences {
		require.NotEmptyf(t, departed[call], "call %d differs, which is no departure: %s", call, what)
	}
	for call, name := range departed {
		require.NotEmptyf(t, differences[call], "call %d is as recorded, in spite of: %s", call, name)
	}
}

// The suite that processes are put through, on a server in this one.
func TestSuite(t *testing.T) {
	Run(t, func(t *testing.T) Target {
		all, err := Transcripts()
		require.NoError(t, err)
		return startInProcess(t, scenarioOf("open-one"), all["open-one"].initial(all))
	})
}

// inProcess is a server over engine and registry; what it has stored outlives it.
type inProcess struct {
	*testing.T
	scenario
	store    *memory.Store
	book     config.Book
	told     *server.Configuration
	mu       sync.Mutex // of the listener
	listener *bufconn.Listener
	engine   *engine.Engine
	wanted   []string
	stop     func()
}

const own = "red"

func startInProcess(t *testing.T, sc scenario, configMap map[string]string) *inProcess {
	s := &inProcess{T: t, scenario: sc, store: memory.New()}
	require.NoError(t, s.Start(t.Context()))
	require.NoError(t, s.Configure(configMap))
	t.Cleanup(func() { s.stop() })
	return s
}

// sink breaks the circle of registry and engine.
type sink struct{ *engine.Engine }

// Start implements Target.
func (s *inProcess) Start(ctx context.Context) error {
	late := &sink{}
	r := registry.New(registry.Config{Store: s.store, Sink: late, Namespace: own, Timeout: s.timeout})
	saved, err := r.Load(ctx)
	if err != nil {
		return err
	}
	s.engine, s.wanted = nil, nil
	s.engine = engine.New(engine.Config{
		Namespace: own, Namespaces: []string{own}, WantConfig: s.want, Remember: r.Remember,
	}, saved.Entries)
	late.Engine = s.engine
	for _, trench := range s.wanted {
		s.configure(trench)
	}
	s.engine.Post(engine.NamespaceSynced{Namespace: own})
	s.told = server.NewConfiguration()
	s.tell()
	srv := server.New(server.Config{
		Engine: s.engine, Targets: s.engine, Registry: r, Configuration: s.told, Namespace: own, Epoch: "this-run", Auth: auth.None, Observer: silent{},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	l := bufconn.Listen(1 << 16)
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	s.stop = sync.OnceFunc(s.run(s.engine.Run, r.Run, func(ctx context.Context) error { return srv.Serve(ctx, l) }))
	return nil
}

// run runs the parts until the returned function is called, the last one first.
func (s *inProcess) run(parts ...func(context.Context) error) (stop func()) {
	for _, part := range parts {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- part(ctx) }()
		below := stop
		stop = func() {
			cancel()
			if err := <-ended; err != nil {
				s.Errorf("stopping: %v", err)
			}
			if below != nil {
				below()
			}
		}
	}
	return stop
}

func (s *inProcess) want(trench string) {
	if s.engine == nil {
		s.wanted = append(s.wanted, trench)
	} else {
		s.configure(trench)
	}
}

func (s *inProcess) configure(trench string) {
	most := make(map[stream.Key]uint32)
	for name, n := range s.maxTargets {
		most[stream.Key{Namespace: own, Trench: trench, Conduit: "conduit-a", Name: name}] = n
	}
	s.engine.Post(engine.TrenchConfigured{Trench: trench, MaxTargets: most})
}

// Configure implements Configured.
func (s *inProcess) Configure(data map[string]string) error {
	if data == nil {
		s.book.Absent()
	} else {
		s.book.Read(data)
	}
	s.tell()
	return nil
}

func (s *inProcess) tell() {
	if c, ok := s.book.Config(); ok {
		s.told.Set(c)
	}
}

// Forget implements Configured.
func (s *inProcess) Forget() { s.book = config.Book{} }

// Kill implements Target.
func (s *inProcess) Kill() { s.stop() }

// Wipe implements Wiper.
func (s *inProcess) Wipe() { s.store = memory.New() }

// Dial implements Target. Clients ping as those of Meridio 1.x do.
func (s *inProcess) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///nsp", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, PermitWithoutStream: true}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			s.mu.Lock()
			l := s.listener
			s.mu.Unlock()
			return l.DialContext(ctx)
		}))
}

// silent observes nothing.
type silent struct{}

func (silent) Watching(string) func()               { return func() {} }
func (silent) Sent(string, int)                     {}
func (silent) Called(string, string, time.Duration) {}
