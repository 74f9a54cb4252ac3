package server

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// The table knows every RPC that is served and no other.
func TestAccessTableIsComplete(t *testing.T) {
	var served, ruled []string
	for service, info := range New(Config{
		Engine: &engine.Engine{}, Targets: &engine.Engine{}, Configuration: NewConfiguration(), Relay: &registry.Registry{},
		Reservations: &registry.Registry{},
	}).grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			served = append(served, "/"+service+"/"+m.Name)
		}
	}
	for method := range access {
		ruled = append(ruled, method)
	}
	require.ElementsMatch(t, served, ruled)
	require.ErrorIs(t, admit(&Config{}, "/targetpool.v1.Inspector/Delete", auth.Caller{Mode: auth.None}), auth.ErrDenied)
}

func TestInspectorIsForLocalCallers(t *testing.T) {
	n := start(t, setup{})
	ask := func(i int) error {
		_, err := targetpoolv1.NewInspectorClient(n.dial(from(i))).ListPools(n.ctx(), &targetpoolv1.ListPoolsRequest{})
		return err
	}
	require.NoError(t, ask(1))
	err := ask(2)
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, "kubectl port-forward")

	require.NoError(t, inspecting(&Config{}, auth.Caller{Mode: auth.None, Addr: netip.MustParseAddr("10.0.0.2")}))
	require.NoError(t, inspecting(&Config{}, auth.Caller{Mode: auth.PeerAddress}), "a unix socket has no address")
}

func TestErrorsBecomeCodes(t *testing.T) {
	for err, code := range map[error]codes.Code{
		invalid("x"):                     codes.InvalidArgument,
		stream.ErrInvalid:                codes.InvalidArgument,
		registry.ErrInvalid:              codes.InvalidArgument,
		auth.Deny(auth.NoRole, "x"):      codes.PermissionDenied,
		auth.Unproven(auth.NoToken, "x"): codes.Unauthenticated,
		auth.TooMany(auth.NoRole, "x"):   codes.ResourceExhausted,
		errShared:                        codes.FailedPrecondition,
		errMismatch:                      codes.FailedPrecondition,
		registry.ErrFull:                 codes.ResourceExhausted,
		registry.ErrWithdrawn:            codes.Aborted,
		registry.ErrStore:                codes.Unavailable,
		registry.ErrStopped:              codes.Unavailable,
		engine.ErrStopped:                codes.Unavailable,
		errStopping:                      codes.Unavailable,
		context.Canceled:                 codes.Canceled,
		context.DeadlineExceeded:         codes.DeadlineExceeded,
		errors.New("nobody expects it"):  codes.Internal,
		status.Error(codes.NotFound, ""): codes.NotFound,
	} {
		st := toStatus(fmt.Errorf("doing it: %w", err))
		require.Equal(t, code, status.Code(st), "%v", err)
		require.True(t, strings.Contains(status.Convert(st).Message(), "doing it"), "the message keeps what was being done: %v", st)
	}
	require.NoError(t, toStatus(nil))
}

// A refusal that nobody can count would be a silent one: what becomes one has a reason.
func TestEveryRefusalHasAReason(t *testing.T) {
	for _, one := range codeOf {
		if one.code == codes.PermissionDenied || one.code == codes.Unauthenticated {
			require.NotEmpty(t, reasonOf(fmt.Errorf("doing it: %w", one.err)), "%v", one.err)
		}
	}
	for kind := range refusals {
		require.Equal(t, codes.Internal, status.Code(toStatus(kind)), "%v without a reason", kind)
	}
}
