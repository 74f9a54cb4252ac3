package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// selfSigned is a certificate for "nsp" that is its own CA, and its key, PEM.
func selfSigned(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{"nsp"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// The server gets another CA while the credentials are in use.
func TestTLSFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	files := TLSFiles{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ServerName: "nsp"}
	write := func(path string, data []byte) { require.NoError(t, os.WriteFile(path, data, 0o600)) }
	cert, key := selfSigned(t)
	write(files.CA, cert)
	write(files.Cert, cert)
	write(files.Key, key)
	creds, err := files.Credentials()
	require.NoError(t, err)

	shake := func(serverCert, serverKey []byte) error {
		pair, err := tls.X509KeyPair(serverCert, serverKey)
		require.NoError(t, err)
		l := loopback(t, "127.0.0.1:0")
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer client.Close()
		server, err := l.Accept()
		require.NoError(t, err)
		clients := x509.NewCertPool()
		clients.AppendCertsFromPEM(serverCert)
		go func() {
			defer server.Close()
			s := tls.Server(server, &tls.Config{
				Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
			})
			if s.Handshake() == nil {
				_, _ = s.Write([]byte("x"))
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		conn, _, err := creds.Clone().ClientHandshake(ctx, files.ServerName, client) // gRPC names it so
		if err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	require.NoError(t, shake(cert, key))
	cert2, key2 := selfSigned(t)
	require.Error(t, shake(cert2, key2))
	write(files.Cert, cert2)
	require.NoError(t, shake(cert, key), "certificate and key do not fit yet: the last ones count")
	write(files.Key, key2)
	write(files.CA, cert2)
	require.NoError(t, shake(cert2, key2))
	require.Error(t, shake(cert, key))
}

func TestTLSFilesThatMakeNoSense(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, f := range map[string]TLSFiles{
		"missing": {CA: "/nowhere"}, "no certificate": {CA: empty}, "half": {Cert: empty}, "no pair": {Cert: empty, Key: empty},
	} {
		_, err := f.Credentials()
		require.Error(t, err, name)
	}
}
