package client_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"

	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// A run stays who it is, and two runs are two.
func TestSession(t *testing.T) {
	one, other := client.NewSession(), client.NewSession()
	said := func(s credentials.PerRPCCredentials) string {
		md, err := s.GetRequestMetadata(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, md["meridio-session"])
		return md["meridio-session"]
	}
	require.Equal(t, said(one), said(one))
	require.NotEqual(t, said(one), said(other))
	require.False(t, one.RequireTransportSecurity())
}
