package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc/credentials"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/nsp"
)

const spiffeFlag = cli.SPIFFEFlag

// addTransport adds the flags of the listener's transport.
func addTransport(cmd *cobra.Command, cfg *nsp.TransportConfig) {
	f := cmd.Flags()
	f.StringVar(&cfg.Transport, "transport", "", "one of "+strings.Join(nsp.Transports, ", ")+
		"; empty chooses spiffe where --"+spiffeFlag+" is set, else plaintext")
	f.StringVar(&cfg.TLSCertFile, "tls-cert-file", "", "certificate chain of the server, PEM; read again when it changes")
	f.StringVar(&cfg.TLSKeyFile, "tls-key-file", "", "private key of the server, PEM; read again when it changes")
	f.StringVar(&cfg.TLSClientCA, "tls-client-ca-file", "", "CA that clients must have a certificate of, PEM; empty asks for none")
	addSPIFFE(f, &cfg.SPIFFESocket, "")
	complete(cmd, "transport", nsp.Transports...)
}

func addSPIFFE(f *pflag.FlagSet, socket *string, and string) {
	f.StringVar(socket, spiffeFlag, "", "workload API that gives SVIDs, as unix:///path; also read from "+workloadapi.SocketEnv+and)
}

// spiffeClient makes the credentials of a client of the workload API. What is returned with them is called at the end.
func spiffeClient(ctx context.Context, socket string, timeout time.Duration) (credentials.TransportCredentials, func(), error) {
	source, err := auth.OpenSPIFFE(ctx, auth.SPIFFEConfig{Socket: socket, Timeout: timeout, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	return source.Client(), source.Close, nil
}
