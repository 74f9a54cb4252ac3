package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// The transports of a client, as those of nsp.
const (
	overPlaintext = "plaintext"
	overTLS       = "tls"
	overSPIFFE    = "spiffe"
)

var transports = []string{overPlaintext, overTLS, overSPIFFE}

// ClientTransport is what the connections of a client of the NSP are made of. Its fields are flags.
type ClientTransport struct {
	name           string
	files          client.TLSFiles
	spiffeSocket   string
	tokenFile      string
	tokenPlaintext bool
}

// AddClientTransport gives a command the flags of a client's transport.
func AddClientTransport(cmd *cobra.Command) *ClientTransport {
	t := &ClientTransport{}
	f := cmd.Flags()
	f.StringVar(&t.name, "transport", "", "one of "+strings.Join(transports, ", ")+
		"; empty chooses spiffe where --"+SPIFFEFlag+" is set, tls where a --tls-* flag is, else plaintext")
	f.StringVar(&t.files.CA, "tls-ca-file", "", "CA of the NSP's certificate, PEM; empty is the system's; read again at each connection, as are the next two")
	f.StringVar(&t.files.Cert, "tls-cert-file", "", "certificate to show to the NSP, PEM")
	f.StringVar(&t.files.Key, "tls-key-file", "", "private key of that certificate, PEM")
	f.StringVar(&t.files.ServerName, "tls-server-name", "", "name that the NSP's certificate must have, where it is not that of its address")
	f.StringVar(&t.spiffeSocket, SPIFFEFlag, "", "workload API that gives SVIDs, as unix:///path; also read from "+workloadapi.SocketEnv)
	f.StringVar(&t.tokenFile, "token-file", "", "projected ServiceAccount token to show to the NSP; read again when the kubelet replaces it")
	f.BoolVar(&t.tokenPlaintext, "token-over-plaintext", false, "show the token even where anybody on the way can read it; for development")
	Complete(cmd, "transport", transports...)
	return t
}

func (t *ClientTransport) kind() string {
	switch {
	case t.name != "":
		return t.name
	case t.files != client.TLSFiles{}:
		return overTLS
	case t.spiffeSocket != "":
		return overSPIFFE
	}
	return overPlaintext
}

// Validate says which flags do not fit each other.
func (t *ClientTransport) Validate() error {
	switch kind := t.kind(); {
	case !slices.Contains(transports, kind):
		return fmt.Errorf("--transport is %q: choose one of %s", kind, strings.Join(transports, ", "))
	case kind != overTLS && t.files != client.TLSFiles{}:
		return fmt.Errorf("--tls-* flags are given, but --transport is %s: choose --transport=tls, or drop them", kind)
	case (t.files.Cert == "") != (t.files.Key == ""):
		return errors.New("--tls-cert-file and --tls-key-file belong together: set both or none")
	case kind == overSPIFFE && t.spiffeSocket == "":
		return errors.New("--transport=spiffe needs --spiffe-endpoint-socket: set it, or SPIFFE_ENDPOINT_SOCKET, to that of the workload API")
	case kind == overPlaintext && t.tokenFile != "" && !t.tokenPlaintext:
		return errors.New("--token-file needs --transport=tls or spiffe: over plaintext anybody on the way can take the token; " +
			"see --token-over-plaintext")
	}
	return nil
}

// ShowsCertificate tells whether the NSP sees a certificate of this client, and ShowsToken whether it sees a token.
func (t *ClientTransport) ShowsCertificate() bool {
	return t.kind() == overSPIFFE || t.kind() == overTLS && t.files.Cert != ""
}

// ShowsToken is described there.
func (t *ClientTransport) ShowsToken() bool { return t.tokenFile != "" }

// Open makes the credentials of the transport, and those of each call where there is a token. end is called when nothing uses them any more.
func (t *ClientTransport) Open(ctx context.Context, log *slog.Logger) (
	transport credentials.TransportCredentials, perRPC credentials.PerRPCCredentials, end func(), err error,
) {
	end = func() {}
	switch t.kind() {
	case overTLS:
		transport, err = t.files.Credentials()
	case overSPIFFE:
		var source *auth.SPIFFE
		if source, err = auth.OpenSPIFFE(ctx, auth.SPIFFEConfig{Socket: t.spiffeSocket, Log: log}); err == nil {
			transport, end = source.Client(), source.Close
		}
	default:
		log.WarnContext(ctx, "the transport is plaintext: anybody on the way can read and change what is said; see --transport")
		transport = insecure.NewCredentials()
	}
	if t.tokenFile != "" {
		perRPC = client.NewTokenFile(t.tokenFile, t.tokenPlaintext)
	}
	return transport, perRPC, end, err
}
