package server

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// What the registry refuses is counted as a refusal, with a code that says whether to come again.
func TestRefusalsOfTheRegistry(t *testing.T) {
	for _, tt := range []struct {
		err    error
		code   codes.Code
		reason auth.Reason
	}{
		{registry.ErrForeign, codes.PermissionDenied, auth.OtherPod},
		{registry.ErrTooMany, codes.ResourceExhausted, auth.TooManyTargets},
		{registry.ErrFull, codes.ResourceExhausted, ""},
		{registry.ErrStore, codes.Unavailable, ""},
	} {
		err := fmt.Errorf("registering: %w", tt.err)
		require.Equal(t, tt.code, status.Code(toStatus(err)), tt.err)
		require.Equal(t, tt.reason, reasonOf(err), tt.err)
	}
}
