package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"

	"github.com/nordix/meridio-nsp/pkg/cli"
)

// connection is how a command reaches a running NSP. Its fields are flags.
type connection struct {
	server                              string
	caFile, certFile, keyFile, hostName string
	spiffeSocket                        string
	timeout                             time.Duration
	// forward is how the NSP is reached where server is empty; nil is not at all.
	forward *forwarding
}

// reach is how the commands of a program find the NSP: by its address, or, as a plugin of kubectl, through the API server.
type reach bool

const (
	byAddress reach = false
	byForward reach = true
)

// example writes command lines as they are typed.
func (r reach) example(lines ...string) string {
	prefix := "  nsp "
	out := []string{"  kubectl port-forward svc/nsp-service 7778 &"}
	if r == byForward {
		prefix, out = "  kubectl targetpool ", nil
	}
	for _, l := range lines {
		out = append(out, prefix+l)
	}
	return strings.Join(out, "\n")
}

// addReach adds the flags with which a command finds the NSP and the cluster.
func addReach(cmd *cobra.Command, how reach) (*connection, *clusterAccess) {
	c := addConnection(cmd, how)
	a := addCluster(cmd)
	if how == byForward {
		c.forward = &forwarding{cluster: a}
		cmd.Flags().StringVar(&c.forward.namespace, "nsp-namespace", "",
			"namespace of the NSP; empty is the one that the Services of --namespace name, else that namespace itself")
	}
	return c, a
}

// maxAnswer bounds the answer of an Inspector: it is not chunked.
const maxAnswer = 256 << 20

// addConnectionTo is for commands that need the cluster for nothing else.
func addConnectionTo(cmd *cobra.Command, how reach) *connection {
	if how == byAddress {
		return addConnection(cmd, how)
	}
	c, _ := addReach(cmd, how)
	return c
}

func addConnection(cmd *cobra.Command, how reach) *connection {
	c := &connection{}
	f := cmd.Flags()
	if how == byForward {
		f.StringVar(&c.server, "nsp-address", "", "address of the NSP; empty forwards a port to it through the API server")
	} else {
		f.StringVar(&c.server, "server", "localhost:7778", "address of the NSP")
	}
	f.StringVar(&c.caFile, "tls-ca-file", "", "CA of the server's certificate, PEM; any --tls-* flag turns TLS on")
	f.StringVar(&c.certFile, "tls-cert-file", "", "certificate to show to the server, PEM")
	f.StringVar(&c.keyFile, "tls-key-file", "", "private key of that certificate, PEM")
	f.StringVar(&c.hostName, "tls-server-name", "", "name that the server's certificate must have, where it is another than the address has")
	addSPIFFE(f, &c.spiffeSocket, "; turns mTLS on where no --tls-* flag is set")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long to wait for an answer")
	return c
}

func (c *connection) validate() error {
	switch {
	case c.server == "" && c.forward == nil:
		return cli.Usage(errors.New("--server is empty: write host:port, as localhost:7778"))
	case c.timeout <= 0:
		return cli.Usage(fmt.Errorf("--timeout is %s: choose a duration above 0, as 10s", c.timeout))
	case (c.certFile == "") != (c.keyFile == ""):
		return cli.Usage(errors.New("--tls-cert-file and --tls-key-file belong together: set both or none"))
	}
	return nil
}

// addressFlag is the one that names the NSP.
func (c *connection) addressFlag() string {
	if c.forward != nil {
		return "--nsp-address"
	}
	return "--server"
}

func (c *connection) tls() bool {
	return c.caFile != "" || c.certFile != "" || c.hostName != ""
}

// credentials are plaintext where nothing else is set. What is returned with them is called at the end.
func (c *connection) credentials(ctx context.Context) (credentials.TransportCredentials, func(), error) {
	switch {
	case c.tls():
		creds, err := c.tlsCredentials()
		return creds, func() {}, err
	case c.spiffeSocket != "":
		return spiffeClient(ctx, c.spiffeSocket, c.timeout)
	}
	return insecure.NewCredentials(), func() {}, nil
}

func (c *connection) tlsCredentials() (credentials.TransportCredentials, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.hostName}
	if c.caFile != "" {
		pem, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, fmt.Errorf("reading --tls-ca-file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-ca-file %s holds no certificate in PEM form", c.caFile)
		}
	}
	if c.certFile != "" {
		pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, fmt.Errorf("reading --tls-cert-file and --tls-key-file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(cfg), nil
}

// open makes the NSP reachable where it has to be; close is called at the end.
func (c *connection) open(ctx context.Context) (closeIt func(), err error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.server != "" {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	address, namespace, stop, err := c.forward.start(ctx)
	if err != nil {
		return nil, err
	}
	if c.tls() && c.hostName == "" {
		c.hostName = nspService + "." + namespace
	}
	c.server = address
	return func() {
		c.server = ""
		stop()
	}, nil
}

// inspect asks the Inspector of the NSP something, within the timeout.
func (c *connection) inspect(ctx context.Context, ask func(context.Context, targetpoolv1.InspectorClient) error) error {
	done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	creds, stop, err := c.credentials(ctx)
	if err != nil {
		return err
	}
	defer stop()
	conn, err := grpc.NewClient(c.server, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return cli.Usage(fmt.Errorf("%s is %q: %w", c.addressFlag(), c.server, err))
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.explain(ask(ctx, targetpoolv1.NewInspectorClient(conn)))
}

// explain says what went wrong and what to do next.
func (c *connection) explain(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%s: %w", c.server, err)
	}
	switch st.Code() {
	case codes.Unavailable:
		return fmt.Errorf("no answer from %s: %s\n%s", c.server, st.Message(), c.whyUnavailable(st.Message()))
	case codes.DeadlineExceeded:
		return fmt.Errorf("no answer from %s within %s; see --timeout", c.server, c.timeout)
	case codes.Unimplemented:
		return fmt.Errorf("%s cannot answer that: %s\nask the namespace-wide NSP, as kubectl port-forward svc/nsp-service 7778 reaches it",
			c.server, st.Message())
	case codes.Canceled:
		return errors.New("interrupted")
	default:
		return fmt.Errorf("%s says %s: %s", c.server, st.Code(), st.Message())
	}
}

// whyUnavailable guesses from the message of gRPC, which carries the cause as text only.
func (c *connection) whyUnavailable(message string) string {
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(message, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("connection refused"):
		return "is the NSP running? from outside the cluster: kubectl port-forward svc/nsp-service 7778"
	case has("first record does not look like a TLS handshake") && !c.tls():
		return "the server speaks plaintext: set --" + spiffeFlag + "= to nothing"
	case has("first record does not look like a TLS handshake"):
		return "the server speaks plaintext: leave the --tls-* flags away"
	case has("unknown authority"):
		return "set --tls-ca-file to the CA of the server's certificate"
	case has("certificate is valid for", "doesn't contain any IP SANs", "certificate is not valid for"):
		return "set --tls-server-name to a name in the server's certificate"
	case has("certificate required", "bad certificate"):
		return "the server wants a certificate: set --tls-cert-file and --tls-key-file"
	case has("name resolver error", "no such host", "produced zero addresses"):
		return "the name does not resolve: check " + c.addressFlag()
	case !c.tls() && c.spiffeSocket == "" && has("error reading server preface", "connection reset", "EOF"):
		return "does the server speak TLS? then set --tls-ca-file"
	}
	return "is that an NSP? see " + c.addressFlag()
}
