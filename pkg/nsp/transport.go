package nsp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc/credentials"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// The transports.
const (
	Plaintext = "plaintext"
	TLS       = "tls"
	SPIFFE    = "spiffe"
)

// Transports are all of them, for messages and completion.
var Transports = []string{Plaintext, TLS, SPIFFE}

// TransportConfig says what connections are made of. Its fields are flags of both processes.
type TransportConfig struct {
	// Transport is one of Transports; empty means SPIFFE where SPIFFESocket is set, else Plaintext.
	Transport string
	// The files of TLS.
	TLSCertFile, TLSKeyFile, TLSClientCA string
	// SPIFFESocket is the address of the workload API.
	SPIFFESocket string
}

// transportName is the transport that is meant.
func (c *TransportConfig) transportName() string {
	if c.Transport == "" && c.SPIFFESocket != "" {
		return SPIFFE
	}
	return cmp.Or(c.Transport, Plaintext)
}

func (c *TransportConfig) validateTransport() error {
	name := c.transportName()
	switch {
	case !slices.Contains(Transports, name):
		return fmt.Errorf("--transport is %q: choose one of %s", name, strings.Join(Transports, ", "))
	case name == TLS && (c.TLSCertFile == "" || c.TLSKeyFile == ""):
		return errors.New("--transport=tls needs --tls-cert-file and --tls-key-file: set both, or choose --transport=plaintext")
	case name != TLS && (c.TLSCertFile != "" || c.TLSKeyFile != "" || c.TLSClientCA != ""):
		return fmt.Errorf("--tls-* files are given, but --transport is %s: choose --transport=tls, or drop them", name)
	case name == SPIFFE && c.SPIFFESocket == "":
		return errors.New("--transport=spiffe needs --spiffe-endpoint-socket: set it, or SPIFFE_ENDPOINT_SOCKET, to that of the workload API")
	case name == SPIFFE:
		if err := workloadapi.ValidateAddress(auth.SPIFFEAddress(c.SPIFFESocket)); err != nil {
			return fmt.Errorf("--spiffe-endpoint-socket is %q: write unix:///path: %w", c.SPIFFESocket, err)
		}
	}
	return nil
}

// transport is what the connections of a process are made of.
type transport struct {
	// server are the credentials of the listener; nil is plaintext.
	server credentials.TransportCredentials
	// spiffe is where SVIDs come from; nil with another transport.
	spiffe *auth.SPIFFE
	// close is called when nothing uses them any more.
	close func()
}

// openTransport makes the credentials; that of SPIFFE waits for the first SVID.
func openTransport(
	ctx context.Context, cfg TransportConfig, domain string, targets *auth.Targets, m *metrics, log *slog.Logger,
) (transport, error) {
	switch cfg.transportName() {
	case SPIFFE:
		return openSPIFFE(ctx, cfg.SPIFFESocket, targets, m, log)
	case TLS:
		server, stop, err := serverTLS(cfg.TLSCertFile, cfg.TLSKeyFile, cfg.TLSClientCA, targets, reloadEvery) //nolint:contextcheck // a handshake brings its own
		if err == nil && domain != "" && cfg.TLSClientCA != "" {
			server = auth.WithIdentity(server, spiffeid.RequireTrustDomainFromString(domain))
		}
		return transport{server: server, close: stop}, err
	default:
		log.WarnContext(ctx, "the transport is plaintext: anybody on the way can read and change what is said; see --transport")
		return transport{close: func() {}}, nil
	}
}

func openSPIFFE(ctx context.Context, socket string, targets *auth.Targets, m *metrics, log *slog.Logger) (transport, error) {
	refused := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "nsp_handshakes_refused_total", Help: "Clients that did not show an SVID that the trust bundles verify.",
	})
	source, err := auth.OpenSPIFFE(ctx, auth.SPIFFEConfig{Socket: socket, Refused: refused.Inc, Log: log})
	if err != nil {
		return transport{}, fmt.Errorf("opening the transport: %w", err)
	}
	m.registry.MustRegister(refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nsp_svid_expiry_timestamp_seconds", Help: "When the SVID of this process expires.",
	}, func() float64 { return float64(source.Expires().Unix()) }))
	return transport{server: source.Server(targets), spiffe: source, close: source.Close}, nil
}
