package iface

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// identifierKey is where Meridio 1.x has the number of a target.
const identifierKey = "identifier"

// nsp is the registry of the namespace, over gRPC.
type nsp struct {
	address     string
	credentials credentials.TransportCredentials
	perRPC      credentials.PerRPCCredentials
	client      *client.Client

	mu   sync.Mutex
	conn *grpc.ClientConn
}

func newNSP(cfg Config) (*nsp, error) {
	c, err := client.New(client.Config{Address: cfg.Server, Credentials: cfg.Credentials, PerRPC: cfg.PerRPC, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	return &nsp{address: cfg.Server, credentials: cfg.Credentials, perRPC: cfg.PerRPC, client: c}, nil
}

func dial(address string, transport credentials.TransportCredentials, perRPC credentials.PerRPCCredentials) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport), grpc.WithDisableServiceConfig(),
		// A server that is not there any more is found out within half a minute.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	}
	if perRPC != nil {
		options = append(options, grpc.WithPerRPCCredentials(perRPC))
	}
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, fmt.Errorf("dialling %s: %w", address, err)
	}
	return conn, nil
}

// close implements registry.
func (n *nsp) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil {
		_ = n.conn.Close()
		n.conn = nil
	}
}

// call makes a call. A connection that did not serve it is given up, with its resolver: gRPC's looks up a name again only after 30 s.
// So is one whose certificate does not count any more: the next one shows that which is there by then.
func (n *nsp) call(what string, k stream.Key, do func(nspv1.TargetRegistryClient) error) error {
	conn, err := n.dialled()
	if err != nil {
		return err
	}
	err = do(nspv1.NewTargetRegistryClient(conn))
	if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Unauthenticated {
		n.giveUp(conn)
	}
	if err != nil {
		return fmt.Errorf("%s in %s at %s: %w", what, k, n.address, err)
	}
	return nil
}

func (n *nsp) dialled() (*grpc.ClientConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	if n.conn == nil {
		n.conn, err = dial(n.address, n.credentials, n.perRPC)
	}
	return n.conn, err
}

func (n *nsp) giveUp(conn *grpc.ClientConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn == conn {
		n.conn = nil
	}
	_ = conn.Close()
}

// reserve implements registry.
func (n *nsp) reserve(ctx context.Context, k stream.Key, addrs []netip.Prefix, wait bool) (uint32, error) {
	return n.client.Reserve(ctx, client.ReserveConfig{
		Stream: &targetpoolv1.Stream{Namespace: k.Namespace, Trench: k.Trench, Conduit: k.Conduit, Name: k.Name},
		IPs:    texts(addrs), Wait: wait,
	})
}

// enable implements registry.
func (n *nsp) enable(ctx context.Context, k stream.Key, addrs []netip.Prefix, id uint32) error {
	return n.call("registering", k, func(c nspv1.TargetRegistryClient) error {
		_, err := c.Register(ctx, target(k, addrs, id))
		return err
	})
}

// unregister implements registry.
func (n *nsp) unregister(ctx context.Context, k stream.Key, addrs []netip.Prefix, id uint32) error {
	return n.call("unregistering", k, func(c nspv1.TargetRegistryClient) error {
		_, err := c.Unregister(ctx, target(k, addrs, id))
		return err
	})
}

// enabled implements registry.
func (n *nsp) enabled(ctx context.Context, k stream.Key, addrs []netip.Prefix) (id uint32, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = n.call("reading the registration", k, func(c nspv1.TargetRegistryClient) error {
		filter := target(k, nil, 0)
		filter.Status, filter.Context = nspv1.Target_ANY, nil
		watch, err := c.Watch(ctx, filter)
		if err != nil {
			return err
		}
		list, err := watch.Recv()
		for _, t := range list.GetTargets() {
			if t.GetStatus() == nspv1.Target_ENABLED && same(t.GetIps(), addrs) {
				number, _ := strconv.ParseUint(t.GetContext()[identifierKey], 10, 32) // 0 is nobody's
				id = uint32(number)
			}
		}
		return err
	})
	return id, err
}

// target is one registration in the words of Meridio 1.x.
func target(k stream.Key, addrs []netip.Prefix, id uint32) *nspv1.Target {
	return &nspv1.Target{
		Ips: texts(addrs), Context: map[string]string{identifierKey: strconv.FormatUint(uint64(id), 10)}, Status: nspv1.Target_ENABLED,
		Type:   nspv1.Target_DEFAULT,
		Stream: &nspv1.Stream{Name: k.Name, Conduit: &nspv1.Conduit{Name: k.Conduit, Trench: &nspv1.Trench{Name: k.Trench}}},
	}
}

func texts(addrs []netip.Prefix) []string {
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// same tells whether texts are these addresses: the registry echoes what it was told.
func same(ips []string, addrs []netip.Prefix) bool {
	want := map[string]bool{}
	for _, a := range addrs {
		want[a.String()] = true
	}
	for _, ip := range ips {
		if !want[ip] {
			return false
		}
	}
	return len(ips) == len(want)
}
