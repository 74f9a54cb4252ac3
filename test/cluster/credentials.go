package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// credentials are the secrets of one cluster, as files in its work directory.
type credentials struct {
	ca         []byte // PEM; the serving certificate signs itself
	token      string // of the administrator
	certFile   string
	keyFile    string
	tokenFile  string
	signerFile string // private key that signs ServiceAccount tokens
	publicFile string
}

func newCredentials(dir string) (*credentials, error) {
	c := &credentials{
		token:      rand.Text(),
		certFile:   filepath.Join(dir, "serving.crt"),
		keyFile:    filepath.Join(dir, "serving.key"),
		tokenFile:  filepath.Join(dir, "tokens.csv"),
		signerFile: filepath.Join(dir, "service-account.key"),
		publicFile: filepath.Join(dir, "service-account.pub"),
	}
	if err := c.writeServing(); err != nil {
		return nil, fmt.Errorf("making the serving certificate: %w", err)
	}
	if err := c.writeSigner(); err != nil {
		return nil, fmt.Errorf("making the service account key: %w", err)
	}
	line := c.token + ",admin,admin,system:masters\n"
	return c, os.WriteFile(c.tokenFile, []byte(line), 0o600)
}

func (c *credentials) writeServing() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(1, 0, 0),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:              []string{"localhost", "kubernetes.default.svc"},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	c.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	if err := os.WriteFile(c.certFile, c.ca, 0o600); err != nil {
		return err
	}
	return writePEM(c.keyFile, "PRIVATE KEY", der)
}

// writeSigner makes an RSA key as kubeadm does, so that verifiers meet the algorithm that clusters use.
func (c *credentials) writeSigner() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(c.signerFile, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)); err != nil {
		return err
	}
	return writePEM(c.publicFile, "PUBLIC KEY", public)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// writeKubeconfig writes a kubeconfig file that says what config says.
func writeKubeconfig(path string, config *rest.Config) error {
	const name = "nsp-test"
	file := api.NewConfig()
	file.Clusters[name] = &api.Cluster{
		Server:                   config.Host,
		CertificateAuthority:     config.CAFile,
		CertificateAuthorityData: config.CAData,
		InsecureSkipTLSVerify:    config.Insecure,
		TLSServerName:            config.ServerName,
	}
	file.AuthInfos[name] = &api.AuthInfo{Token: config.BearerToken}
	file.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return nil
}
