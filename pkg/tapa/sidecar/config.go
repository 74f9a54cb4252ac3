package sidecar

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Config says whose sidecar this is, and what it reaches.
type Config struct {
	// PodName, PodNamespace and PodUID are the pod; PodIP names it where there is no name.
	PodName, PodNamespace, PodUID, PodIP string
	// ExternalTarget, as namespace/name, is who this is where there is no pod; the credentials prove it.
	ExternalTarget string
	// NSPAddress is that of the namespace-wide NSP; empty means nsp-service.<NSPNamespace>:7778.
	NSPAddress string
	// NSPNamespace is the namespace of the streams; empty means that of the pod.
	NSPNamespace string
	// Credentials of the transport to the NSP, and of its calls; PerRPC is optional.
	Credentials credentials.TransportCredentials
	PerRPC      credentials.PerRPCCredentials

	// Connector is what people are told of the connector: what it is, and where.
	Connector string
	// TapSocket is what the application uses.
	TapSocket string
	// StateFile keeps who wants which stream; it outlives the container.
	StateFile string
	// HealthSocket and HealthAddress answer probes, AdminSocket people, MetricsAddress Prometheus; each can be empty.
	HealthSocket, HealthAddress, AdminSocket, MetricsAddress string

	// ShutdownTimeout is how long closing the pool's streams may take at the end.
	ShutdownTimeout time.Duration
	// OperationTimeout bounds one attempt to open or close.
	OperationTimeout time.Duration
}

// Complete fills in what follows from the rest.
func (c *Config) Complete() {
	if c.NSPNamespace == "" {
		c.NSPNamespace = c.PodNamespace
	}
	if ns, _, ok := strings.Cut(c.ExternalTarget, "/"); ok && c.NSPNamespace == "" {
		c.NSPNamespace = ns
	}
	if c.NSPAddress == "" && c.ExternalTarget == "" {
		c.NSPAddress = "nsp-service." + c.NSPNamespace + ":7778"
	}
}

// Validate says what is missing or makes no sense, after Complete.
func (c *Config) Validate() error {
	if err := c.validateWorkload(); err != nil {
		return err
	}
	switch {
	case c.NSPNamespace == "":
		return errors.New("--namespace is empty: name the namespace of the trench")
	case c.TapSocket == "" || c.StateFile == "":
		return errors.New("--tap-socket and --state-file must each name a path")
	case c.ShutdownTimeout < 0:
		return fmt.Errorf("--shutdown-timeout is %s: choose 0 or more", c.ShutdownTimeout)
	case c.OperationTimeout <= 0:
		return fmt.Errorf("--operation-timeout is %s: choose more than 0", c.OperationTimeout)
	}
	probe := stream.Conduit{Namespace: c.NSPNamespace, Trench: "t", Name: "c"}
	if err := probe.Validate(); err != nil {
		return fmt.Errorf("--namespace: %w", err)
	}
	return nil
}

// validateWorkload says what is missing or wrong of whose sidecar this is.
func (c *Config) validateWorkload() error {
	if c.ExternalTarget != "" {
		return c.validateMachine()
	}
	switch {
	case c.PodName == "" && c.PodIP == "":
		return errors.New("--pod-name is empty: set it from metadata.name by the downward API, or --pod-ip from status.podIP; " +
			"on a machine that is no pod set --external-target")
	case c.PodName != "" && c.PodNamespace == "":
		return errors.New("--pod-namespace is empty: set it from metadata.namespace by the downward API")
	}
	if c.PodIP != "" {
		if _, err := netip.ParseAddr(c.PodIP); err != nil {
			return fmt.Errorf("--pod-ip is %q: write an IP address", c.PodIP)
		}
	}
	return nil
}

func (c *Config) validateMachine() error {
	namespace, name, whole := strings.Cut(c.ExternalTarget, "/")
	switch {
	case c.PodName+c.PodNamespace+c.PodUID+c.PodIP != "":
		return errors.New("--external-target is for a machine that is no pod: drop it, or --pod-*")
	case !whole || namespace == "" || name == "" || strings.Contains(name, "/"):
		return fmt.Errorf("--external-target is %q: write the ExternalTarget as namespace/name", c.ExternalTarget)
	case c.NSPAddress == "":
		return errors.New("--server is empty: name the address at which the NSP can be reached from outside the cluster")
	}
	return nil
}

// workload is the target whose streams are watched.
func (c *Config) workload() *targetpoolv1.Workload {
	if namespace, name, ok := strings.Cut(c.ExternalTarget, "/"); ok {
		return &targetpoolv1.Workload{Namespace: namespace, ExternalTarget: name}
	}
	if c.PodName == "" {
		return &targetpoolv1.Workload{Address: c.PodIP}
	}
	return &targetpoolv1.Workload{Namespace: c.PodNamespace, Pod: c.PodName, PodUid: c.PodUID}
}
