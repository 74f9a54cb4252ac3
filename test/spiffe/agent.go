package spiffe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Agent serves the workload API to one workload on a unix socket. It can be stopped and started again.
type Agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	path string

	mu     sync.Mutex
	answer *workload.X509SVIDResponse
	denied error
	asked  int
	// changed is closed when the answer is another.
	changed chan struct{}
	server  *grpc.Server
	ended   chan error
}

// NewAgent makes an agent that serves at the path once it is started. Until Issue is called no identity is registered for
// the workload.
func NewAgent(path string) *Agent {
	return &Agent{path: path, changed: make(chan struct{}), denied: status.Error(codes.PermissionDenied, "no identity issued")}
}

// Socket is the agent's address.
func (a *Agent) Socket() string { return "unix://" + a.path }

// Path is the path of the socket.
func (a *Agent) Path() string { return a.path }

// Start begins to serve.
func (a *Agent) Start(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", a.path)
	if err != nil {
		return fmt.Errorf("opening the agent's socket: %w", err)
	}
	a.server, a.ended = grpc.NewServer(), make(chan error, 1)
	workload.RegisterSpiffeWorkloadAPIServer(a.server, a)
	go func(s *grpc.Server, ended chan<- error) { ended <- s.Serve(l) }(a.server, a.ended)
	return nil
}

// Stop cuts all off and removes the socket.
func (a *Agent) Stop() error {
	a.server.Stop()
	if err := <-a.ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving the workload API: %w", err)
	}
	return nil
}

// Issue gives the workload an SVID and the bundles it shall trust, now and to those who watch. The bundle of the SVID's own
// trust domain must be among them; the others are federated.
func (a *Agent) Issue(svid *x509svid.SVID, bundles ...*x509bundle.Bundle) error {
	certs, key, err := svid.MarshalRaw()
	if err != nil {
		return fmt.Errorf("encoding the SVID: %w", err)
	}
	own := &workload.X509SVID{SpiffeId: svid.ID.String(), X509Svid: certs, X509SvidKey: key}
	resp := &workload.X509SVIDResponse{Svids: []*workload.X509SVID{own}, FederatedBundles: map[string][]byte{}}
	for _, b := range bundles {
		var der []byte
		for _, c := range b.X509Authorities() {
			der = append(der, c.Raw...)
		}
		if b.TrustDomain() == svid.ID.TrustDomain() {
			own.Bundle = append(own.Bundle, der...)
		} else {
			resp.FederatedBundles[b.TrustDomain().IDString()] = der
		}
	}
	a.set(resp, nil)
	return nil
}

// Deny ends the watches with an error, and answers every new one with it, until something is issued.
func (a *Agent) Deny(err error) { a.set(nil, err) }

// Asked is how often a watch began.
func (a *Agent) Asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

func (a *Agent) set(resp *workload.X509SVIDResponse, denied error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer, a.denied = resp, denied
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *Agent) now() (*workload.X509SVIDResponse, <-chan struct{}, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answer, a.changed, a.denied
}

// FetchX509SVID implements workload.SpiffeWorkloadAPIServer.
func (a *Agent) FetchX509SVID(_ *workload.X509SVIDRequest, ss grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	// The specification asks for this header, so that nobody is tricked into calling.
	md, _ := metadata.FromIncomingContext(ss.Context())
	if len(md.Get("workload.spiffe.io")) != 1 {
		return status.Error(codes.InvalidArgument, "security header missing")
	}
	a.mu.Lock()
	a.asked++
	a.mu.Unlock()
	for {
		resp, changed, err := a.now()
		if err != nil {
			return err
		}
		if err := ss.Send(resp); err != nil {
			return fmt.Errorf("sending an SVID: %w", err)
		}
		select {
		case <-changed:
		case <-ss.Context().Done():
			return status.FromContextError(ss.Context().Err()).Err()
		}
	}
}
