package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
)

// selfSigned are the two sides of TLS 1.3.
func selfSigned(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"nsp"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	pair := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	server = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: pair, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAnyClientCert,
	}
	return server, &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "nsp", Certificates: pair, NextProtos: []string{"h2"},
	}
}

// shakers listens and shakes hands with whoever comes; results come out of the channel.
func shakers(t *testing.T, creds *orderly) (address string, results chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	results = make(chan error, 1000)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer raw.Close()
				_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
				conn, _, err := creds.ServerHandshake(raw)
				results <- err
				if err == nil {
					_, _ = conn.Write([]byte("x"))
					_, _ = conn.Read(make([]byte, 1)) // until the client leaves
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return l.Addr().String(), results
}

// Clients that fall silent, before or in the middle of their handshakes, keep nobody waiting.
func TestSilentHandshakesKeepNobodyWaiting(t *testing.T) { // P26
	server, client := selfSigned(t)
	address, results := shakers(t, &orderly{TransportCredentials: credentials.NewTLS(server), turns: newTurns(1)})
	hello := helloOf(t, client)
	for i := range 20 {
		raw, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = raw.Close() })
		if i%2 == 0 {
			_, err = raw.Write(hello)
			require.NoError(t, err)
		}
	}
	for range 5 {
		conn, err := tls.Dial("tcp", address, client)
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	for range 5 {
		require.NoError(t, <-results)
	}
}

// helloOf is what a client says first.
func helloOf(t *testing.T, client *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() { _ = tls.Client(theirs, client).Handshake() }()
	hello := make([]byte, 16<<10)
	n, err := ours.Read(hello)
	require.NoError(t, err)
	return hello[:n]
}

// A client that gave up while it waited for its turn costs nothing more; who waits longer comes first.
func TestAbandonedHandshakesAreNotBegun(t *testing.T) { // P26
	server, client := selfSigned(t)
	o := &orderly{TransportCredentials: credentials.NewTLS(server), turns: newTurns(1)}
	address, results := shakers(t, o)
	o.turns.take(false) // The server is busy.
	hello := helloOf(t, client)
	for i := range 3 {
		raw, err := net.Dial("tcp", address)
		require.NoError(t, err)
		_, err = raw.Write(hello)
		require.NoError(t, err)
		o.waiting(t, i+1)
		require.NoError(t, raw.Close())
	}
	done := make(chan error, 1)
	go func() {
		conn, err := tls.Dial("tcp", address, client)
		if err == nil {
			err = conn.Close()
		}
		done <- err
	}()
	o.waiting(t, 4)
	o.turns.give()
	for range 3 {
		require.ErrorIs(t, <-results, errAbandoned)
	}
	require.NoError(t, <-results)
	require.NoError(t, <-done)
	require.Equal(t, 1, o.turns.free)
}

// waiting waits until so many handshakes wait to begin.
func (o *orderly) waiting(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		o.turns.mu.Lock()
		defer o.turns.mu.Unlock()
		return len(o.turns.first.waiting) == n
	}, 20*time.Second, time.Millisecond)
}

func TestTurnsAreTakenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(2)
		turns.take(false)
		turns.take(true)
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				turns.take(i%2 == 1)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				turns.give()
			})
			synctest.Wait()
		}
		turns.give() // One turn, so that the order is one.
		all.Wait()
		require.Equal(t, []int{1, 3, 5, 7, 9, 0, 2, 4, 6, 8}, order)
		turns.give()
		require.Equal(t, 2, turns.free)
	})
}
