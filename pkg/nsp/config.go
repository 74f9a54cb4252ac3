// Package nsp puts the processes of the NSP together.
package nsp

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// Version is set by the linker.
var Version = "dev"

// The transports.
const (
	Plaintext = "plaintext"
	TLS       = "tls"
)

// Transports are all of them, for messages and completion.
var Transports = []string{Plaintext, TLS}

// NamespaceConfig configures a namespace process. Its fields are the flags of "nsp namespace".
type NamespaceConfig struct {
	// Namespace is the NSP's own: it serves the streams of this namespace.
	Namespace string
	Port      int
	// MetricsAddress and HealthSocket may be empty: then there are none.
	MetricsAddress, HealthSocket string
	// Datasource is the path of the registry file.
	Datasource   string
	EntryTimeout time.Duration

	Transport                            string
	TLSCertFile, TLSKeyFile, TLSClientCA string
	Authorisation                        string
	Assignment                           string
	// ReadinessPush is whether load balancers are told of readiness; without it only registrations count, as in Meridio 1.x.
	ReadinessPush bool

	Kubeconfig      string
	ShutdownTimeout time.Duration
}

// Validate says, in sentences, all that has to be changed.
func (c *NamespaceConfig) Validate() error {
	return errors.Join(
		c.validateNames(),
		c.validateTransport(),
		positive("--entry-timeout", c.EntryTimeout),
		positive("--shutdown-timeout", c.ShutdownTimeout),
	)
}

func (c *NamespaceConfig) validateNames() error {
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
	if _, err := auth.ParseMode(c.Authorisation); err != nil {
		errs = append(errs, fmt.Errorf("--authorisation: %w", err))
	}
	if a := pool.Assignment(c.Assignment); a != pool.ByMembership && a != pool.ByReadiness {
		errs = append(errs, fmt.Errorf("--assignment is %q: choose %s or %s", c.Assignment, pool.ByMembership, pool.ByReadiness))
	}
	return errors.Join(errs...)
}

func (c *NamespaceConfig) validateTransport() error {
	switch {
	case !slices.Contains(Transports, c.Transport):
		return fmt.Errorf("--transport is %q: choose one of %s", c.Transport, strings.Join(Transports, ", "))
	case c.Transport == TLS && (c.TLSCertFile == "" || c.TLSKeyFile == ""):
		return errors.New("--transport=tls needs --tls-cert-file and --tls-key-file: set both, or choose --transport=plaintext")
	case c.Transport != TLS && (c.TLSCertFile != "" || c.TLSKeyFile != "" || c.TLSClientCA != ""):
		return fmt.Errorf("--tls-* files are given, but --transport is %s: choose --transport=tls, or drop them", c.Transport)
	}
	return nil
}

func positive(flag string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%s is %s: choose a duration above 0, as 60s", flag, d)
	}
	return nil
}
