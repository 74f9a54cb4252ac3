package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
	"github.com/nordix/meridio-nsp/pkg/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A command line that makes no sense ends with 2 and a sentence that says what to do.
func TestUsageErrors(t *testing.T) {
	for line, says := range map[string]string{
		"":                               "--file is empty",
		"--file x":                       "--listen is empty",
		"--file x --listen y --every 0s": "--every is 0s",
		"--bogus":                        "unknown flag: --bogus",
		"now":                            `unknown command "now"`,
	} {
		var stderr bytes.Buffer
		code := cli.Execute(t.Context(), newRoot(), append([]string{"resolver-file"}, strings.Fields(line)...), io.Discard, &stderr)
		require.Equal(t, cli.ExitUsage, code, line)
		require.Contains(t, stderr.String(), says, line)
		require.Contains(t, stderr.String(), "Run 'resolver-file --help'", line)
	}
}

func TestFollowsTheFile(t *testing.T) {
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "r.yaml"), "unix://"+filepath.Join(dir, "s")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("resources: {rack-7/db: [{address: 192.0.2.1, identity: 'spiffe://a/b'}, {address: '2001:db8::1', readiness: draining}]}")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		root := newRoot()
		root.SetArgs([]string{"--file", file, "--listen", socket, "--every", "5ms"})
		if err := root.ExecuteContext(ctx); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { conn.Close(); cancel(); running.Wait() }()

	watch := func(locator string) grpc.ServerStreamingClient[resolverv1.WatchResponse] {
		stream, err := resolverv1.NewResolverClient(conn).Watch(ctx, &resolverv1.WatchRequest{Locator: locator}, grpc.WaitForReady(true))
		require.NoError(t, err)
		return stream
	}
	db := watch("rack-7/db")
	first, err := db.Recv()
	require.NoError(t, err)
	require.Len(t, first.Endpoints, 2)
	require.Equal(t, "spiffe://a/b", first.Endpoints[0].Identity)
	require.Equal(t, resolverv1.Readiness_READINESS_DRAINING, first.Endpoints[1].Readiness)

	_, err = watch("rack-8").Recv()
	require.Equal(t, codes.NotFound, status.Code(err))

	write("resources: {rack-7/db: [{address: nonsense}]}") // what it said last counts
	time.AfterFunc(50*time.Millisecond, func() { write("resources: {rack-7/db: [{address: 192.0.2.3}], other: []}") })
	second, err := db.Recv()
	require.NoError(t, err)
	require.Len(t, second.Endpoints, 1)
	require.Equal(t, "192.0.2.3", second.Endpoints[0].Address)

	write("{}")
	_, err = db.Recv()
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestFaultsAreNamed(t *testing.T) {
	for text, says := range map[string]string{
		"resources: {a: [{address: x}]}":                             `resource "a": "x" is no IP address`,
		"resources: {a: [{address: 192.0.2.1, readiness: perhaps}]}": "none of ready",
		"resources: {a: [{addr: 192.0.2.1}]}":                        "unknown field",
		"\n":                                                         "empty",
		"[":                                                          "yaml",
	} {
		_, err := parse([]byte(text))
		require.ErrorContains(t, err, says)
	}
	good := filepath.Join(t.TempDir(), "r.yaml")
	require.NoError(t, os.WriteFile(good, []byte("{}"), 0o600))
	for says, cfg := range map[string]config{
		"--tls-cert-file": {file: good, listen: ":0", every: time.Second},
		"is no socket":    {file: good, listen: "unix://" + good, every: time.Second}, // and it stays
	} {
		require.ErrorContains(t, run(t.Context(), cfg, slog.New(slog.DiscardHandler)), says)
	}
	require.FileExists(t, good)
}
