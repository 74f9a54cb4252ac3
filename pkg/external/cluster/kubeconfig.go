package cluster

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// requestTimeout bounds what is not a watch.
const requestTimeout = 30 * time.Second

// RESTConfig reads a kubeconfig that somebody else has written. What would have this process run commands or read files is
// refused: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/ warns of just that.
func RESTConfig(kubeconfig []byte) (*rest.Config, error) {
	raw, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if err := harmless(raw); err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*raw, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.UserAgent = "meridio-nsp"
	return config, nil
}

func harmless(raw *clientcmdapi.Config) error {
	for name, user := range raw.AuthInfos {
		if user.Exec != nil || user.AuthProvider != nil {
			return fmt.Errorf("user %.63q of the kubeconfig runs a command; use a token or a client certificate", name)
		}
		if user.TokenFile != "" || user.ClientCertificate != "" || user.ClientKey != "" {
			return fmt.Errorf("user %.63q of the kubeconfig names a file; put its contents into the kubeconfig", name)
		}
	}
	for name, cluster := range raw.Clusters {
		if cluster.CertificateAuthority != "" {
			return fmt.Errorf("cluster %.63q of the kubeconfig names a file; put its contents into the kubeconfig", name)
		}
	}
	if len(raw.Clusters) == 0 {
		return errors.New("the kubeconfig names no cluster")
	}
	return nil
}
