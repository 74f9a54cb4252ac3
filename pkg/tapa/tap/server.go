// Package tap serves the TAP API of Meridio 1.x to the application, as its TAPA does.
package tap

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

// Keeper keeps streams for the application; tapa.Reconciler is one.
type Keeper interface {
	Open(stream.Key) error
	Close(stream.Key) error
	View() (*tapa.View, <-chan struct{})
}

// Server implements ambassadorv1.TapServer.
type Server struct {
	ambassadorv1.UnimplementedTapServer
	keeper    Keeper
	namespace string
}

// New makes a server; all streams of the TAP API are of the namespace.
func New(keeper Keeper, namespace string) *Server {
	return &Server{keeper: keeper, namespace: namespace}
}

// Open implements ambassadorv1.TapServer.
func (s *Server) Open(_ context.Context, asked *ambassadorv1.Stream) (*emptypb.Empty, error) {
	return s.have(s.keeper.Open, asked)
}

// Close implements ambassadorv1.TapServer.
func (s *Server) Close(_ context.Context, asked *ambassadorv1.Stream) (*emptypb.Empty, error) {
	return s.have(s.keeper.Close, asked)
}

func (s *Server) have(do func(stream.Key) error, asked *ambassadorv1.Stream) (*emptypb.Empty, error) {
	k := Key(asked, s.namespace)
	if k.Name == "" || k.Conduit == "" || k.Trench == "" {
		return nil, status.Errorf(codes.InvalidArgument,
			"the stream %q of conduit %q of trench %q is not named in full", k.Name, k.Conduit, k.Trench)
	}
	err := do(k)
	switch {
	case err == nil:
		return &emptypb.Empty{}, nil
	case errors.Is(err, tapa.ErrOtherTrench):
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, tapa.ErrDraining):
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return nil, status.Error(codes.Internal, err.Error())
}

// Watch implements ambassadorv1.TapServer: the streams that match at once, and again when something about them changes.
func (s *Server) Watch(filter *ambassadorv1.Stream, out grpc.ServerStreamingServer[ambassadorv1.StreamResponse]) error {
	var last []tapa.Row
	for first := true; ; first = false {
		view, changed := s.keeper.View()
		rows := slices.DeleteFunc(slices.Clone(view.Rows), func(r tapa.Row) bool { return !matches(filter, r.Stream) })
		if first || !slices.EqualFunc(rows, last, alike) {
			if err := out.Send(response(rows)); err != nil {
				return err
			}
			last = rows
		}
		select {
		case <-out.Context().Done():
			return nil
		case <-changed:
		}
	}
}

func alike(a, b tapa.Row) bool { return a.Stream == b.Stream && a.Status == b.Status }

func response(rows []tapa.Row) *ambassadorv1.StreamResponse {
	r := &ambassadorv1.StreamResponse{}
	for _, row := range rows {
		r.StreamStatus = append(r.StreamStatus, &ambassadorv1.StreamStatus{
			Stream: Stream(row.Stream), Status: ambassadorv1.StreamStatus_Status(row.Status),
		})
	}
	return r
}
