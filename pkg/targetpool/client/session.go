package client

import (
	"context"
	"crypto/rand"

	"google.golang.org/grpc/credentials"
)

// sessionHeader is where the NSP looks for the session of a caller.
const sessionHeader = "meridio-session"

// session is PerRPCCredentials that only say which run of a sidecar calls.
type session string

// NewSession names this run of a sidecar that proves by its certificate to be an ExternalTarget, for Config.PerRPC and for all its other
// calls to the NSP. Where several prove the same, the one that began to watch last counts, and what an older one says, however late,
// does not undo what the newer one does. A sidecar that connects again stays who it was.
func NewSession() credentials.PerRPCCredentials { return session(rand.Text()) }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (s session) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{sessionHeader: string(s)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: it is no secret.
func (s session) RequireTransportSecurity() bool { return false }
