package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxAddresses is how many addresses one ExternalTarget may have. Of more, the first in order are taken and the condition
// Resolved says so.
const MaxAddresses = 1000

// Conditions of an ExternalTarget.
const (
	// ConditionResolved is whether the addresses are known: True while they are up to date, False with a reason while the last
	// ones are held or none are known.
	ConditionResolved = "Resolved"
	// ConditionReady is whether at least one address takes traffic.
	ConditionReady = "Ready"
	// ConditionSelected is whether a Service of the namespace selects the ExternalTarget.
	ConditionSelected = "Selected"
)

// ExternalTarget registers a resource that is no pod of this cluster (virtual machines, a DNS name, a Service of another
// cluster, a resource of a cloud) once, under a name, with labels. A Service of its namespace selects it by its labels as it
// selects pods; its addresses are written to EndpointSlices of that Service, so that every client of Kubernetes finds them.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=et;extt,categories=meridio
// +kubebuilder:printcolumn:name="Addresses",type=integer,JSONPath=`.status.totalAddresses`,description="Addresses that are known"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyAddresses`,description="Addresses that take traffic"
// +kubebuilder:printcolumn:name="Resolved",type=string,JSONPath=`.status.conditions[?(@.type=="Resolved")].status`
// +kubebuilder:printcolumn:name="Selected",type=string,JSONPath=`.status.conditions[?(@.type=="Selected")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Resolved")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ExternalTarget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says where the addresses come from and who the resource is.
	Spec ExternalTargetSpec `json:"spec"`

	// Status is what was found. Only the controller writes it, and load balancers are told of confirmed addresses only.
	//
	// +optional
	Status ExternalTargetStatus `json:"status,omitempty"`
}

// ExternalTargetSpec says where the addresses come from and who the resource is.
type ExternalTargetSpec struct {
	// Source of the addresses: exactly one kind.
	Source Source `json:"source"`

	// Ports on which the resource listens, for Services whose targetPort is a name. A targetPort that is a number needs none.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Ports []TargetPort `json:"ports,omitempty"`

	// Identity that the resource proves when it registers by itself, as a sidecar on a virtual machine does. Without it, nobody
	// can register in its name.
	//
	// +optional
	Identity *Identity `json:"identity,omitempty"`
}

// Source is exactly one kind of source.
//
// +kubebuilder:validation:XValidation:rule="[has(self.addresses), has(self.dns), has(self.kubernetes), has(self.provider)].exists_one(x, x)",message="name exactly one of addresses, dns, kubernetes, provider"
type Source struct {
	// Addresses that are written down here.
	//
	// +optional
	Addresses *AddressSource `json:"addresses,omitempty"`

	// DNS is a name whose A and AAAA records are the addresses.
	//
	// +optional
	DNS *DNSSource `json:"dns,omitempty"`

	// Kubernetes is a Service of another cluster, whose endpoints are the addresses.
	//
	// +optional
	Kubernetes *KubernetesSource `json:"kubernetes,omitempty"`

	// Provider is a resolver that runs as a process of its own and understands locators of some cloud.
	//
	// +optional
	Provider *ProviderSource `json:"provider,omitempty"`
}

// Address is an IPv4 or IPv6 address in its usual spelling, of which a load balancer may send packets to another machine.
//
// +kubebuilder:validation:MinLength=2
// +kubebuilder:validation:MaxLength=45
// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="must be an IP address in canonical form"
// +kubebuilder:validation:XValidation:rule="!isIP(self) || !(ip(self).isUnspecified() || ip(self).isLoopback() || ip(self).isLinkLocalUnicast() || ip(self).isLinkLocalMulticast())",message="must not be an unspecified, loopback or link-local address"
// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="must be a unicast address"
type Address string

// AddressSource is a list of addresses.
type AddressSource struct {
	// IPs are the addresses, of either family.
	//
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	IPs []Address `json:"ips"`

	// Health says how to find out whether an address takes traffic. Without it every address does.
	//
	// +optional
	Health *HealthProbe `json:"health,omitempty"`
}

// HealthProbe probes each address by exactly one of tcp, http and grpc. An address is not ready before its first success.
//
// +kubebuilder:validation:XValidation:rule="[has(self.tcp), has(self.http), has(self.grpc)].exists_one(x, x)",message="name exactly one of tcp, http, grpc"
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || !has(self.interval) || duration(self.timeout) <= duration(self.interval)",message="timeout must not be longer than interval"
type HealthProbe struct {
	// TCP succeeds when a connection is accepted.
	//
	// +optional
	TCP *TCPProbe `json:"tcp,omitempty"`

	// HTTP succeeds when a GET is answered with a status from 200 to 399.
	//
	// +optional
	HTTP *HTTPProbe `json:"http,omitempty"`

	// GRPC succeeds when the service grpc.health.v1.Health answers SERVING.
	//
	// +optional
	GRPC *GRPCProbe `json:"grpc,omitempty"`

	// Interval between the beginnings of two probes of an address, 100ms to 1h.
	//
	// +optional
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('1h')",message="must be 100ms to 1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	Interval *metav1.Duration `json:"interval,omitempty"`

	// Timeout after which a probe has failed, at most the interval.
	//
	// +optional
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms')",message="must be 10ms or longer"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// UpAfter is how many probes in a row must succeed until an address is ready.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	UpAfter int32 `json:"upAfter,omitempty"`

	// DownAfter is how many probes in a row must fail until a ready address is not ready.
	//
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	DownAfter int32 `json:"downAfter,omitempty"`
}

// PortNumber is a port of TCP, UDP or SCTP.
//
// +kubebuilder:validation:Minimum=1
// +kubebuilder:validation:Maximum=65535
type PortNumber int32

// TCPProbe connects.
type TCPProbe struct {
	// Port to connect to.
	Port PortNumber `json:"port"`
}

// HTTPProbe asks for a page.
type HTTPProbe struct {
	// Port to ask.
	Port PortNumber `json:"port"`

	// Path to ask for.
	//
	// +optional
	// +kubebuilder:default="/"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/\S*$`
	Path string `json:"path,omitempty"`

	// Host is the header of that name. Default: the address.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9.:\[\]]+$`
	Host string `json:"host,omitempty"`

	// Scheme is HTTP or HTTPS. The certificate is not verified, as in probes of pods: the probe proves health, not identity.
	//
	// +optional
	// +kubebuilder:default=HTTP
	// +kubebuilder:validation:Enum=HTTP;HTTPS
	Scheme string `json:"scheme,omitempty"`
}

// GRPCProbe asks the health service, without TLS.
type GRPCProbe struct {
	// Port to ask.
	Port PortNumber `json:"port"`

	// Service to ask about. Default: the whole server.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Service string `json:"service,omitempty"`
}

// Family is a family of IP addresses.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type Family string

// The families of IP addresses.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// DNSSource is a name to resolve. The answers' TTLs decide when to ask again, within minTTL and maxTTL.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minTTL) || !has(self.maxTTL) || duration(self.minTTL) <= duration(self.maxTTL)",message="minTTL must not be longer than maxTTL"
type DNSSource struct {
	// Name to resolve, fully qualified; a dot at its end makes no difference, and no search domains are tried.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?\.?$`
	// +kubebuilder:validation:XValidation:rule="!isIP(self)",message="is an IP address: use source.addresses"
	Name string `json:"name"`

	// Families whose addresses count.
	//
	// +optional
	// +listType=set
	// +kubebuilder:default={IPv4,IPv6}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Families []Family `json:"families,omitempty"`

	// Resolvers are the DNS servers to ask, the next one where one gives no answer. Default: those of the controller's pod.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	Resolvers []Resolver `json:"resolvers,omitempty"`

	// MinTTL is the shortest time between two queries, 1s to 1h, for records with a lower TTL or without one.
	//
	// +optional
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="must be 1s to 1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	MinTTL *metav1.Duration `json:"minTTL,omitempty"`

	// MaxTTL is the longest time between two queries, 1s to 24h.
	//
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be 1s to 24h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	MaxTTL *metav1.Duration `json:"maxTTL,omitempty"`

	// MaxStale is for how long the last good answer counts while there is none: the name does not exist, has no addresses, or
	// no resolver answers. 0s to 168h.
	//
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('168h')",message="must be 168h or shorter"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	MaxStale *metav1.Duration `json:"maxStale,omitempty"`
}

// Resolver is the address of a DNS server with an optional port: 192.0.2.53, 192.0.2.53:5353, 2001:db8::53, [2001:db8::53]:53.
//
// +kubebuilder:validation:MinLength=2
// +kubebuilder:validation:MaxLength=54
// +kubebuilder:validation:Pattern=`^((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])){3}(:(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}))?|[0-9a-f]*:[0-9a-f]*:[0-9a-f.:]*|\[[0-9a-f]*:[0-9a-f]*:[0-9a-f.:]*\](:(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}))?)$`
type Resolver string

// KubernetesSource is a Service of another cluster.
type KubernetesSource struct {
	// Cluster is the name of the other cluster, by which its Services are told from those of the same name elsewhere. It must not
	// be the name of this cluster. Default: the name and namespace of this object, NAME.NAMESPACE; the names in kubeconfigs are
	// often the same everywhere.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Cluster string `json:"cluster,omitempty"`

	// KubeconfigSecret holds the credentials of the other cluster, in the namespace of this object. A client certificate, a
	// token or a password in it are used; commands and files it names are not.
	KubeconfigSecret SecretKey `json:"kubeconfigSecret"`

	// Namespace of the Service in the other cluster.
	Namespace NamespaceName `json:"namespace"`

	// Service is its name. Its EndpointSlices are watched.
	Service ObjectName `json:"service"`

	// MaxStale is for how long the last state counts while the other cluster is away. 0s to 168h.
	//
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('168h')",message="must be 168h or shorter"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	MaxStale *metav1.Duration `json:"maxStale,omitempty"`
}

// SecretKey is a key of a Secret.
type SecretKey struct {
	// Name of the Secret.
	Name ObjectName `json:"name"`

	// Key in the Secret.
	//
	// +optional
	// +kubebuilder:default=kubeconfig
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// ProviderSource is a resource that a provider process resolves.
type ProviderSource struct {
	// Name of the provider, as the controller was told of it (--provider NAME=ADDRESS).
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`

	// Locator is what the provider knows the resource by, such as the resource id of a virtual machine scale set. Only the
	// provider understands it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Locator string `json:"locator"`

	// MaxStale is for how long the last state counts while the provider is away or answers nonsense. 0s to 168h.
	//
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('168h')",message="must be 168h or shorter"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	MaxStale *metav1.Duration `json:"maxStale,omitempty"`
}

// TargetPort is a named port.
type TargetPort struct {
	// Name that Services use as targetPort.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Port number.
	Port PortNumber `json:"port"`

	// Protocol is TCP, UDP or SCTP; it must be that of the Service's port.
	//
	// +optional
	// +kubebuilder:default=TCP
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol corev1.Protocol `json:"protocol,omitempty"`
}

// Identity is what the resource proves by mTLS: exactly one of spiffeID and x509.
//
// +kubebuilder:validation:XValidation:rule="[has(self.spiffeID), has(self.x509)].exists_one(x, x)",message="name exactly one of spiffeID, x509"
type Identity struct {
	// SPIFFEID is the URI of its SVID, spiffe://trust-domain/path.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^spiffe://[a-z0-9._-]{1,255}(/[A-Za-z0-9._-]+)+$`
	SPIFFEID string `json:"spiffeID,omitempty"`

	// X509 is a certificate that a certain authority signed for a certain subject.
	//
	// +optional
	X509 *X509Identity `json:"x509,omitempty"`
}

// X509Identity is a certificate authority and a subject.
type X509Identity struct {
	// CAConfigMap holds the certificates of the authority, PEM, in the namespace of this object.
	CAConfigMap ConfigMapKey `json:"caConfigMap"`

	// Subject is the common name of the certificate, or one of its DNS names.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Subject string `json:"subject"`
}

// ConfigMapKey is a key of a ConfigMap.
type ConfigMapKey struct {
	// Name of the ConfigMap.
	Name ObjectName `json:"name"`

	// Key in the ConfigMap.
	//
	// +optional
	// +kubebuilder:default="ca.crt"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// ExternalTargetList is a list of ExternalTargets.
//
// +kubebuilder:object:root=true
type ExternalTargetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExternalTarget `json:"items"`
}
