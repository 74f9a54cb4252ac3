package tap

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// keeper shows what the test says.
type keeper struct {
	err    error
	opened []stream.Key
	views  chan *tapa.View
	view   *tapa.View
	next   chan struct{}
}

func (k *keeper) Open(s stream.Key) error {
	k.opened = append(k.opened, s)
	return k.err
}

func (k *keeper) Close(stream.Key) error { return k.err }

func (k *keeper) View() (*tapa.View, <-chan struct{}) {
	select {
	case k.view = <-k.views:
		k.next = make(chan struct{})
	default:
	}
	return k.view, k.next
}

func (k *keeper) show(rows ...tapa.Row) {
	k.views <- &tapa.View{Rows: rows}
	if k.next != nil {
		close(k.next)
	}
}

func serve(t *testing.T, k *keeper) ambassadorv1.TapClient {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(t.Context(), socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	ambassadorv1.RegisterTapServer(server, New(k, "red"))
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(); server.Stop(); <-done })
	return ambassadorv1.NewTapClient(conn)
}

func row(trench, conduit, name string, s tapa.Status) tapa.Row {
	return tapa.Row{Stream: stream.Key{Namespace: "red", Trench: trench, Conduit: conduit, Name: name}, Status: s}
}

// Errors become codes; names that are missing are refused before anything is stored.
func TestCodes(t *testing.T) {
	k := &keeper{}
	c := serve(t, k)
	for _, s := range []*ambassadorv1.Stream{nil, {Name: "one"}, {Name: "one", Conduit: &ambassadorv1.Conduit{Name: "c"}}} {
		_, err := c.Open(t.Context(), s)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
	require.Empty(t, k.opened)
	full := Stream(stream.Key{Trench: "a", Conduit: "c", Name: "one"})
	for err, code := range map[error]codes.Code{
		nil: codes.OK, tapa.ErrOtherTrench: codes.FailedPrecondition, tapa.ErrDraining: codes.Unavailable,
		tapa.ErrNotStored: codes.Internal, errors.New("other"): codes.Internal,
	} {
		k.err = err
		_, got := c.Open(t.Context(), full)
		require.Equal(t, code, status.Code(got))
		_, got = c.Close(t.Context(), full)
		require.Equal(t, code, status.Code(got))
	}
}

// A watch shows what matches, at once, also when that is nothing, and again when something about it changes.
func TestWatch(t *testing.T) {
	k := &keeper{views: make(chan *tapa.View, 1)}
	k.show()
	c := serve(t, k)
	w, err := c.Watch(t.Context(), &ambassadorv1.Stream{Conduit: &ambassadorv1.Conduit{Name: "c"}})
	require.NoError(t, err)
	next := func() map[string]string {
		r, err := w.Recv()
		require.NoError(t, err)
		out := map[string]string{}
		for _, s := range r.GetStreamStatus() {
			out[s.GetStream().GetConduit().GetTrench().GetName()+"/"+s.GetStream().GetName()] = s.GetStatus().String()
		}
		return out
	}
	require.Empty(t, next())
	k.show(row("a", "c", "one", tapa.Pending), row("a", "other", "two", tapa.Open))
	require.Equal(t, map[string]string{"a/one": "PENDING"}, next())
}

// What a filter leaves out matches all, as in Meridio 1.x.
func TestFilter(t *testing.T) {
	of := func(trench, conduit, name string) *ambassadorv1.Stream {
		return Stream(row(trench, conduit, name, 0).Stream)
	}
	k := row("a", "c", "one", 0).Stream
	for _, f := range []*ambassadorv1.Stream{nil, {}, of("", "", ""), of("a", "", ""), of("", "c", ""), of("", "", "one"), of("a", "c", "one"), {Name: "one"}} {
		require.True(t, matches(f, k), f)
	}
	for _, f := range []*ambassadorv1.Stream{of("b", "", ""), of("", "d", ""), of("", "", "two"), of("a", "c", "On"), {Name: "two"}} {
		require.False(t, matches(f, k), f)
	}
}

// Processes of other users may connect, and nobody may take the place of somebody else.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := Listen(t.Context(), path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o666), info.Mode().Perm())
	_, err = Listen(t.Context(), path)
	require.ErrorContains(t, err, "another process listens")
	require.NoError(t, l.Close())
}
