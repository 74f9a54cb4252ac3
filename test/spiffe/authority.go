// Package spiffe plays the parts around a process with SPIFFE identities: the authority of a trust domain, and an agent that
// serves the workload API.
package spiffe

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Authority signs the SVIDs of a trust domain.
type Authority struct {
	domain spiffeid.TrustDomain
	cert   *x509.Certificate
	key    crypto.Signer
}

// NewAuthority makes the authority of a trust domain.
func NewAuthority(domain string) (*Authority, error) {
	d, err := spiffeid.TrustDomainFromString(domain)
	if err != nil {
		return nil, fmt.Errorf("naming the trust domain: %w", err)
	}
	a := &Authority{domain: d}
	x := template(d.ID(), time.Hour)
	x.IsCA, x.BasicConstraintsValid, x.KeyUsage = true, true, x509.KeyUsageCertSign
	a.cert, a.key, err = a.sign(x)
	return a, err
}

// SVID is a new one of spiffe://DOMAIN/PATH that is valid for so long from now; below 0, it expired as long ago.
func (a *Authority) SVID(path string, valid time.Duration) (*x509svid.SVID, error) {
	id, err := spiffeid.FromPath(a.domain, path)
	if err != nil {
		return nil, fmt.Errorf("naming the workload: %w", err)
	}
	x := template(id, valid)
	x.KeyUsage = x509.KeyUsageDigitalSignature
	x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert, key, err := a.sign(x)
	if err != nil {
		return nil, err
	}
	return &x509svid.SVID{ID: id, Certificates: []*x509.Certificate{cert}, PrivateKey: key}, nil
}

// Bundle is what verifies the authority's SVIDs.
func (a *Authority) Bundle() *x509bundle.Bundle {
	return x509bundle.FromX509Authorities(a.domain, []*x509.Certificate{a.cert})
}

func template(id spiffeid.ID, valid time.Duration) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		URIs: []*url.URL{id.URL()}, NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(valid),
	}
}

// sign signs for a new key; without a certificate of its own the authority signs itself.
func (a *Authority) sign(x *x509.Certificate) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	if x.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, nil, fmt.Errorf("drawing a serial number: %w", err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = x, key
	}
	der, err := x509.CreateCertificate(rand.Reader, x, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("signing: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("reading what was signed: %w", err)
	}
	return cert, key, nil
}

// Self is the authority's own certificate in the guise of an SVID, which nobody must take for one.
func (a *Authority) Self() *x509svid.SVID {
	return &x509svid.SVID{ID: a.domain.ID(), Certificates: []*x509.Certificate{a.cert}, PrivateKey: a.key}
}

// Plain is a client certificate without a SPIFFE ID, of a common name and DNS names; edit, where it is set, changes it before it is
// signed.
func (a *Authority) Plain(commonName string, dnsNames []string, edit func(*x509.Certificate)) (tls.Certificate, error) {
	now := time.Now()
	x := &x509.Certificate{
		Subject: pkix.Name{CommonName: commonName}, DNSNames: dnsNames, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if edit != nil {
		edit(x)
	}
	cert, key, err := a.sign(x)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

// PEM is the authority's own certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}
