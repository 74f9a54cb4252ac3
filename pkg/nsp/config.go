// Package nsp puts the processes of the NSP together.
package nsp

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// Version is set by the linker.
var Version = "dev"

// ProcessConfig is what every process is configured with. Its fields are flags.
type ProcessConfig struct {
	// Namespace is the NSP's own: it serves the streams of this namespace.
	Namespace string
	Port      int
	// MetricsAddress and HealthSocket may be empty: then there are none.
	MetricsAddress, HealthSocket string
	// Datasource is the path of the registry file.
	Datasource   string
	EntryTimeout time.Duration

	TransportConfig
	AuthConfig

	Kubeconfig      string
	ShutdownTimeout time.Duration
}

// NamespaceConfig configures a namespace process. Its fields are the flags of "nsp namespace".
type NamespaceConfig struct {
	ProcessConfig

	// ClusterName completes the names of Services to unique ones; empty where that is not wanted.
	ClusterName string
	Assignment  string
	// ReadinessPush is whether load balancers are told of readiness; without it only registrations count, as in Meridio 1.x.
	ReadinessPush bool
	// TargetNamespaces are watched for Services beside Namespace; "*" stands for those that grants name, whenever they do.
	TargetNamespaces []string
	// TrenchProcessAccounts are the ServiceAccounts of trench processes, as namespace/name, or as a name in Namespace.
	TrenchProcessAccounts []string
}

// Validate says, in sentences, all that has to be changed.
func (c *NamespaceConfig) Validate() error {
	return errors.Join(c.ProcessConfig.Validate(), c.validateAuth(c.namespaceMode()), c.validatePolicy())
}

func (c *NamespaceConfig) validatePolicy() error {
	var errs []error
	if a := pool.Assignment(c.Assignment); a != pool.ByMembership && a != pool.ByReadiness {
		errs = append(errs, fmt.Errorf("--assignment is %q: choose %s or %s", c.Assignment, pool.ByMembership, pool.ByReadiness))
	}
	if err := ValidateClusterName(c.ClusterName); err != nil {
		errs = append(errs, err)
	}
	if err := validateTargetNamespaces(c.TargetNamespaces); err != nil {
		errs = append(errs, err)
	}
	if _, err := parseAccounts("--trench-process-accounts", c.TrenchProcessAccounts, c.Namespace); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ValidateClusterName wants the name of a cluster, --cluster-name, to be a DNS subdomain as names of other objects are; it may be
// empty.
func ValidateClusterName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); name != "" && len(problems) > 0 {
		return fmt.Errorf("--cluster-name is %.300q: %s", name, problems[0])
	}
	return nil
}

// Validate says, in sentences, all that has to be changed.
func (c *ProcessConfig) Validate() error {
	return errors.Join(
		c.validateNames(),
		c.validateTransport(),
		positive("--entry-timeout", c.EntryTimeout),
		positive("--shutdown-timeout", c.ShutdownTimeout),
	)
}

func (c *ProcessConfig) validateNames() error {
	var errs []error
	if c.Namespace == "" {
		errs = append(errs, errors.New("--namespace is empty: set it, or NSP_NAMESPACE, to the namespace that this NSP serves"))
	}
	if c.Port < 1 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("--port is %d: choose one of 1 to 65535", c.Port))
	}
	if c.Datasource == "" {
		errs = append(errs, errors.New("--datasource is empty: set it to the path of the registry file"))
	}
	if _, _, err := net.SplitHostPort(c.MetricsAddress); c.MetricsAddress != "" && err != nil {
		errs = append(errs, fmt.Errorf("--metrics-address is %q: write it as host:port or :port, or leave it empty for none", c.MetricsAddress))
	}
	if c.HealthSocket != "" && !filepath.IsAbs(c.HealthSocket) {
		errs = append(errs, fmt.Errorf("--health-socket is %q: write an absolute path, or leave it empty for none", c.HealthSocket))
	}
	return errors.Join(errs...)
}

func positive(flag string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%s is %s: choose a duration above 0, as 60s", flag, d)
	}
	return nil
}
