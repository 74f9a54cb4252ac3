package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	// errCertificateEnded ends a stream with the certificate of its caller.
	errCertificateEnded = auth.Unproven(auth.ExpiredCertificate, "the certificate that this was opened with has expired; connect again with the next one")
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
	{auth.ErrUnverified, codes.Unavailable},
	{errShared, codes.FailedPrecondition},
	{errMismatch, codes.FailedPrecondition},
	{registry.ErrTooMany, codes.ResourceExhausted},
	{registry.ErrFull, codes.ResourceExhausted},
	{registry.ErrWithdrawn, codes.Aborted},
	{registry.ErrStore, codes.Unavailable},
	{registry.ErrStopped, codes.Unavailable},
	{engine.ErrStopped, codes.Unavailable},
	{errStopping, codes.Unavailable},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// refusals are the codes of an auth.Refusal. Nothing else becomes one: a refusal without a reason could not be counted.
var refusals = map[error]codes.Code{
	auth.ErrDenied:   codes.PermissionDenied,
	auth.ErrUnproven: codes.Unauthenticated,
	auth.ErrTooMany:  codes.ResourceExhausted,
}

// toStatus turns an error into a gRPC status. It is the only place where that happens.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if st, ok := status.FromError(err); ok {
		if st.Code() == codes.Internal && strings.Contains(st.Message(), unreadable) {
			return status.Error(codes.InvalidArgument, brief(st.Message()))
		}
		return err
	}
	if refusal, ok := errors.AsType[*auth.Refusal](err); ok {
		return status.Error(refusals[refusal.Unwrap()], brief(err.Error()))
	}
	for _, c := range codeOf {
		if errors.Is(err, c.err) {
			return status.Error(c.code, brief(err.Error()))
		}
	}
	return status.Error(codes.Internal, brief(err.Error()))
}

// unreadable is what gRPC says, as an error of the server's, of a message that is no protobuf or has a string that is no UTF-8. The
// caller hears that from gRPC itself; our log and our metrics have it as the mistake that it is.
const unreadable = "failed to unmarshal the received message"

// brief cuts a message that repeats something huge that a client said.
func brief(s string) string {
	const most = 2 << 10
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most/2], "") + " [...] " + strings.ToValidUTF8(s[len(s)-most/2:], "")
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errInvalid, fmt.Sprintf(format, args...))
}
