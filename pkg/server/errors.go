package server

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// errInvalid is wrapped where a request makes no sense, errShared where it names more than one pod, errMismatch where the
// caller is configured for another NSP.
var (
	errInvalid  = errors.New("invalid request")
	errShared   = errors.New("ambiguous target")
	errMismatch = errors.New("other NSP")
	errStopping = errors.New("the NSP is shutting down; connect again")
	// errTokenEnded ends a stream with the token of its caller.
	errTokenEnded = auth.Unproven(auth.ExpiredToken, "the token that this was opened with has expired; open again with the next one")
)

// codeOf says which gRPC code an error becomes; first match.
var codeOf = []struct {
	err  error
	code codes.Code
}{
	{errInvalid, codes.InvalidArgument},
	{stream.ErrInvalid, codes.InvalidArgument},
	{registry.ErrInvalid, codes.InvalidArgument},
	{registry.ErrForeign, codes.PermissionDenied},
	{auth.ErrDenied, codes.PermissionDenied},
	{auth.ErrUnproven, codes.Unauthenticated},
	{auth.ErrTooMany, codes.ResourceExhausted},
	{auth.ErrUnverified, codes.Unavailable},
	{errShared, codes.FailedPrecondition},
	{errMismatch, codes.FailedPrecondition},
	{registry.ErrFull, codes.ResourceExhausted},
	{registry.ErrWithdrawn, codes.Aborted},
	{registry.ErrStore, codes.Unavailable},
	{registry.ErrStopped, codes.Unavailable},
	{engine.ErrStopped, codes.Unavailable},
	{errStopping, codes.Unavailable},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// toStatus turns an error into a gRPC status. It is the only place where that happens.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, c := range codeOf {
		if errors.Is(err, c.err) {
			return status.Error(c.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errInvalid, fmt.Sprintf(format, args...))
}
