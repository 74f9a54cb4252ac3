package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/nordix/meridio-nsp/pkg/nsp"
)

// spiffeFlag is the one flag whose variable has no prefix: it is that of the SPIFFE specification.
const spiffeFlag = "spiffe-endpoint-socket"

// addTransport adds the flags of the listener's transport.
func addTransport(cmd *cobra.Command, cfg *nsp.TransportConfig) {
	f := cmd.Flags()
	f.StringVar(&cfg.Transport, "transport", "", "one of "+strings.Join(nsp.Transports, ", ")+
		"; empty chooses spiffe where --"+spiffeFlag+" is set, else plaintext")
	f.StringVar(&cfg.TLSCertFile, "tls-cert-file", "", "certificate chain of the server, PEM; read again when it changes")
	f.StringVar(&cfg.TLSKeyFile, "tls-key-file", "", "private key of the server, PEM; read again when it changes")
	f.StringVar(&cfg.TLSClientCA, "tls-client-ca-file", "", "CA that clients must have a certificate of, PEM; empty asks for none")
	f.StringVar(&cfg.SPIFFESocket, spiffeFlag, "", "workload API that gives SVIDs, as unix:///path; also read from "+workloadapi.SocketEnv)
	complete(cmd, "transport", nsp.Transports...)
}
