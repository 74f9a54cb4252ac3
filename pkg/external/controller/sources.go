package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/external"
	"github.com/nordix/meridio-nsp/pkg/external/cluster"
	"github.com/nordix/meridio-nsp/pkg/external/dns"
	"github.com/nordix/meridio-nsp/pkg/external/probe"
	"github.com/nordix/meridio-nsp/pkg/external/provider"
)

// sources make the sources of ExternalTargets.
type sources struct {
	reader    client.Reader // not cached: a cache of Secrets would hold all of them
	providers map[string]grpc.ClientConnInterface
	cluster   string // the name of this one
}

// failing is a source that cannot work, and says why.
type failing struct{ external.Report }

// Run implements external.Source.
func (f failing) Run(ctx context.Context, report func(external.Report)) {
	report(f.Report)
	<-ctx.Done()
}

func nothing() {}

func broken(reason, format string, args ...any) func() (external.Source, func()) {
	source := failing{external.Failed(reason, format, args...)}
	return func() (external.Source, func()) { return source, nothing }
}

func plain(source external.Source) func() (external.Source, func()) {
	return func() (external.Source, func()) { return source, nothing }
}

// of makes the source of the target.
func (s *sources) of(ctx context.Context, t *v1alpha1.ExternalTarget) wanted {
	text, _ := json.Marshal(t.Spec.Source)
	want := wanted{resource: string(t.UID) + string(text)}
	switch source := t.Spec.Source; {
	case source.Addresses != nil:
		want.open = plain(probe.New(probeConfig(source.Addresses)))
	case source.DNS != nil:
		want.open = plain(dns.New(dnsConfig(source.DNS)))
		want.maxStale = duration(source.DNS.MaxStale, 10*time.Minute)
	case source.Kubernetes != nil:
		want.access, want.open = s.kubernetes(ctx, t.Namespace, source.Kubernetes)
		want.maxStale = duration(source.Kubernetes.MaxStale, 10*time.Minute)
	case source.Provider != nil:
		want.open = s.provider(source.Provider)
		want.maxStale = duration(source.Provider.MaxStale, 10*time.Minute)
	default:
		want.open = broken(external.ReasonInvalid, "The source is of no kind that is known.")
	}
	return want
}

func duration(d *metav1.Duration, byDefault time.Duration) time.Duration {
	if d == nil {
		return byDefault
	}
	return d.Duration
}

func probeConfig(s *v1alpha1.AddressSource) probe.Config {
	var cfg probe.Config
	for _, ip := range s.IPs {
		if addr, err := netip.ParseAddr(string(ip)); err == nil { // the API server has seen to that
			cfg.Addresses = append(cfg.Addresses, addr)
		}
	}
	h := s.Health
	if h == nil {
		return cfg
	}
	cfg.Interval, cfg.Timeout = duration(h.Interval, 5*time.Second), duration(h.Timeout, time.Second)
	cfg.UpAfter, cfg.DownAfter = int(h.UpAfter), int(h.DownAfter)
	switch {
	case h.TCP != nil:
		cfg.Check = probe.TCP(uint16(h.TCP.Port))
	case h.HTTP != nil:
		scheme := "http"
		if h.HTTP.Scheme == string(corev1.URISchemeHTTPS) {
			scheme = "https"
		}
		cfg.Check = probe.HTTP(probe.HTTPConfig{Scheme: scheme, Port: uint16(h.HTTP.Port), Path: cmp.Or(h.HTTP.Path, "/"), Host: h.HTTP.Host})
	case h.GRPC != nil:
		cfg.Check = probe.GRPC(uint16(h.GRPC.Port), h.GRPC.Service)
	}
	return cfg
}

func dnsConfig(s *v1alpha1.DNSSource) dns.Config {
	cfg := dns.Config{Name: s.Name, MinTTL: duration(s.MinTTL, 5*time.Second), MaxTTL: duration(s.MaxTTL, 5*time.Minute)}
	for _, family := range s.Families {
		cfg.Families = append(cfg.Families, map[v1alpha1.Family]dns.Family{v1alpha1.IPv4: dns.IPv4, v1alpha1.IPv6: dns.IPv6}[family])
	}
	for _, resolver := range s.Resolvers {
		cfg.Resolvers = append(cfg.Resolvers, dns.HostPort(string(resolver)))
	}
	return cfg
}

// kubernetes reads the Secret. What is returned with the source changes with the Secret.
func (s *sources) kubernetes(ctx context.Context, namespace string, k *v1alpha1.KubernetesSource) (string, func() (external.Source, func())) {
	if s.cluster != "" && k.Cluster == s.cluster {
		return "", broken(external.ReasonInvalid, "Cluster %s is this one; give the other cluster its own name.", k.Cluster)
	}
	var secret corev1.Secret
	ref := k.KubeconfigSecret
	if err := s.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: string(ref.Name)}, &secret); err != nil {
		return "unreadable", broken(external.ReasonSecretUnreadable, "Reading Secret %s: %v.", ref.Name, err)
	}
	kubeconfig, ok := secret.Data[cmp.Or(ref.Key, "kubeconfig")]
	if !ok {
		return "no key", broken(external.ReasonSecretUnreadable, "Secret %s has no key %q.", ref.Name, cmp.Or(ref.Key, "kubeconfig"))
	}
	sum := sha256.Sum256(kubeconfig)
	access := hex.EncodeToString(sum[:])
	config, err := cluster.RESTConfig(kubeconfig)
	if err != nil {
		return access, broken(external.ReasonSecretUnreadable, "Secret %s: %v.", ref.Name, err)
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return access, broken(external.ReasonSecretUnreadable, "Secret %s: %v.", ref.Name, err)
	}
	clients, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return access, broken(external.ReasonSecretUnreadable, "Secret %s: %v.", ref.Name, err)
	}
	source := cluster.New(cluster.Config{Client: clients, Namespace: string(k.Namespace), Service: string(k.Service)})
	return access, func() (external.Source, func()) { return source, httpClient.CloseIdleConnections }
}

func (s *sources) provider(p *v1alpha1.ProviderSource) func() (external.Source, func()) {
	conn := s.providers[p.Name]
	if conn == nil {
		return broken(external.ReasonUnknownProvider, "The controller knows no provider %q; start it with --provider %s=ADDRESS.", p.Name, p.Name)
	}
	return plain(provider.New(provider.Config{Conn: conn, Name: p.Name, Locator: p.Locator}))
}
