package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is a CA that lives as long as the bench, with one certificate for the server and one for all clients.
type authority struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir}
	template := certificate(1, "nsp bench CA")
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	if err := a.issue("ca", template); err != nil {
		return nil, err
	}
	server := certificate(2, "nsp")
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if err := a.issue("server", server); err != nil {
		return nil, err
	}
	client := certificate(3, "client")
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a, a.issue("client", client)
}

func certificate(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
}

// issue signs a certificate and writes it with its key; the first one signs itself.
func (a *authority) issue(name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the key of %s: %w", name, err)
	}
	if a.cert == nil {
		a.key, a.cert = key, template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return fmt.Errorf("signing the certificate of %s: %w", name, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding the key of %s: %w", name, err)
	}
	for file, block := range map[string]*pem.Block{
		a.file(name + ".crt"): {Type: "CERTIFICATE", Bytes: der},
		a.file(name + ".key"): {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			return fmt.Errorf("writing the certificate of %s: %w", name, err)
		}
	}
	return nil
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// serverArgs are the flags of a namespace process that speaks TLS and asks its clients for certificates.
func (a *authority) serverArgs() []string {
	return []string{
		"--transport=tls", "--tls-cert-file=" + a.file("server.crt"), "--tls-key-file=" + a.file("server.key"),
		"--tls-client-ca-file=" + a.file("ca.crt"),
	}
}

// dial is how clients reach the address.
func (a *authority) dial(address string) dial {
	return dial{Address: address, CA: a.file("ca.crt"), Cert: a.file("client.crt"), Key: a.file("client.key")}
}

// serverFiles are the files of a server in this very program.
func (a *authority) serverFiles() dial {
	return dial{CA: a.file("ca.crt"), Cert: a.file("server.crt"), Key: a.file("server.key")}
}
