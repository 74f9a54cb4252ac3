package cluster

import (
	"fmt"
	"path/filepath"
)

// The ranges of a dual-stack cluster.
const (
	serviceRange = "10.96.0.0/16,fd00:10:96::/112"
	issuer       = "https://kubernetes.default.svc.cluster.local"
)

func etcdArgs(dir string, port int) []string {
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	return []string{
		"--data-dir=" + filepath.Join(dir, "etcd"),
		"--unsafe-no-fsync", // the data need not survive a power cut
		"--listen-client-urls=" + url,
		"--advertise-client-urls=" + url,
		"--listen-peer-urls=http://127.0.0.1:0",
		"--log-level=warn",
	}
}

func apiServerArgs(dir string, port, etcdPort int, c *credentials) []string {
	return []string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", etcdPort),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--endpoint-reconciler-type=none", // a loopback address is no valid endpoint
		"--cert-dir=" + dir,
		"--tls-cert-file=" + c.certFile,
		"--tls-private-key-file=" + c.keyFile,
		"--token-auth-file=" + c.tokenFile,
		"--authorization-mode=RBAC",
		"--service-account-issuer=" + issuer,
		"--service-account-signing-key-file=" + c.signerFile,
		"--service-account-key-file=" + c.publicFile,
		"--service-cluster-ip-range=" + serviceRange,
		// Without it a client that asks a lot is slowed down, and a benchmark would measure that.
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=0",
		"--max-mutating-requests-inflight=0",
		"--profiling=false",
		"--delete-collection-workers=16",
		"--event-ttl=10m",
	}
}

func controllerManagerArgs(kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--controllers=endpointslice-controller,endpointslice-mirroring-controller,serviceaccount-controller," +
			"namespace-controller,pod-garbage-collector-controller,garbage-collector-controller",
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=2000",
		"--kube-api-burst=4000",
		"--concurrent-service-endpoint-syncs=20",
		"--mirroring-concurrent-service-endpoint-syncs=20",
		"--concurrent-namespace-syncs=20",
		"--profiling=false",
	}
}
