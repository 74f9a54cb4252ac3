package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that lengths stands on
	"google.golang.org/grpc/mem"
)

// dial says how to reach a namespace process; without a CA it is plaintext. The fields are exported for the way to the client
// processes.
type dial struct{ Address, CA, Cert, Key string }

// credentialsOf reads the files of a dial once.
var credentialsOf = func() func(dial) (credentials.TransportCredentials, error) {
	var mu sync.Mutex
	known := make(map[dial]credentials.TransportCredentials)
	return func(d dial) (credentials.TransportCredentials, error) {
		mu.Lock()
		defer mu.Unlock()
		if c, ok := known[d]; ok {
			return c, nil
		}
		c, err := d.read()
		if err == nil {
			known[d] = c
		}
		return c, err
	}
}()

func (d dial) read() (credentials.TransportCredentials, error) {
	if d.CA == "" {
		return insecure.NewCredentials(), nil
	}
	ca, err := os.ReadFile(d.CA)
	if err != nil {
		return nil, fmt.Errorf("reading the CA: %w", err)
	}
	cert, err := tls.LoadX509KeyPair(d.Cert, d.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of clients: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{cert},
	}), nil
}

// A connection may take this long at first, and at most, as in the client library.
const (
	connectLimit    = 5 * time.Second
	maxConnectLimit = 40 * time.Second
)

// open makes one connection, which may take so long to be made. It comes back as those of the client library do: soon, with jitter.
func (d dial) open(limit time.Duration, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	creds, err := credentialsOf(d)
	if err != nil {
		return nil, err
	}
	again := backoff.Config{BaseDelay: 500 * time.Millisecond, Multiplier: 2, Jitter: 0.5, MaxDelay: 5 * time.Second}
	conn, err := grpc.NewClient(d.Address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: limit}),
		grpc.WithDisableServiceConfig(),
		// Ten thousand clients in one process.
		grpc.WithReadBufferSize(4 << 10), grpc.WithWriteBufferSize(4 << 10),
	}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("dialling %s: %w", d.Address, err)
	}
	return conn, nil
}

// length takes the place of a message of which only the length matters: clients that share the processors with what is
// measured shall not spend time on lists that nobody looks at.
type length int

// lengths is the ordinary codec, except for length.
type lengths struct{ encoding.CodecV2 }

func newLengths() lengths { return lengths{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c lengths) Unmarshal(data mem.BufferSlice, v any) error {
	if n, ok := v.(*length); ok {
		*n = length(data.Len())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// pause waits for a random part of d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	wait(ctx, rand.N(d+1))
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// until polls a condition that another goroutine makes true. What is measured is noted when it happens, not here.
func until(limit time.Duration, what string, done func() bool) error {
	for end := time.Now().Add(limit); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s: not within %s", what, limit)
		}
	}
	return nil
}
