package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"testing"
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
	address, results := shakers(t, newOrderly(credentials.NewTLS(server)))
	hello := helloOf(t, client)
	for i := range 3 * handshakesUnderWay {
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

// A client that gave up while it waited for a place costs nothing more.
func TestAbandonedHandshakesAreNotBegun(t *testing.T) { // P26
	server, client := selfSigned(t)
	o := newOrderly(credentials.NewTLS(server))
	o.places = newSemaphore(1, mathrand.IntN)
	address, results := shakers(t, o)
	o.places.take(nil) // The server is busy.
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
	o.places.give()
	abandoned := 0
	for range 4 {
		if err := <-results; err != nil {
			require.ErrorIs(t, err, errAbandoned)
			abandoned++
		}
	}
	require.Equal(t, 3, abandoned)
	require.NoError(t, <-done)
	o.places.take(nil) // It was given back.
}

// waiting waits until so many handshakes wait to begin.
func (o *orderly) waiting(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		o.places.mu.Lock()
		defer o.places.mu.Unlock()
		return len(o.places.waiting) == n
	}, 20*time.Second, time.Millisecond)
}
