package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/tapa"
	"github.com/nordix/meridio-nsp/pkg/tapa/sidecar"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func command(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = execute(ctx, append([]string{"tapa"}, args...), &out, &err)
	return code, out.String(), err.String()
}

// A command line that makes no sense ends with 2 and a sentence that says what to do.
func TestUsageErrors(t *testing.T) {
	for line, says := range map[string]string{
		"bogus":                  `unknown command "bogus"`,
		"state":                  `unknown command "state": did you mean status?`,
		"":                       "--pod-name is empty",
		"--pod-name web-0":       "--pod-namespace is empty",
		"--pod-name a --bad":     "unknown flag",
		"status -o yaml":         "choose table or json",
		"status now":             `unknown command "now"`,
		"version now":            `unknown command "now"`,
		"--pod-ip 1.2.3.4":       "--namespace is empty",
		"POD --transport fax":    `--transport is "fax"`,
		"POD --transport spiffe": "needs --spiffe-endpoint-socket",
		"POD --transport plaintext --tls-ca-file x":                      "choose --transport=tls",
		"POD --tls-cert-file x":                                          "belong together",
		"POD --token-file x":                                             "--token-over-plaintext",
		"POD --tap-socket /a --ambassador-socket /a":                     "another path",
		"POD --connector fax":                                            `--connector is "fax"`,
		"POD --interface net1":                                           "choose that, or drop them",
		"POD --connector interface":                                      "--interface is empty",
		"POD --connector interface --interface net1 --gateway router":    `--gateway is "router"`,
		"POD --connector interface --interface net1 --gateway 0.0.0.0":   "write the address of a router",
		"POD --connector interface --interface net1 --route-table 254":   "--route-table is 254",
		"POD --connector interface --interface net1 --rule-priority -1":  "--rule-priority is -1",
		"POD --connector interface --interface net1 --entry-timeout -1s": "--entry-timeout is -1s",
		"POD --shutdown-timeout soon":                                    "invalid argument",
		"POD --log-level loud":                                           "choose debug, info, warn or error",
		"POD --operation-timeout 0s":                                     "--operation-timeout is 0s",
		"POD --state-file=":                                              "--state-file",
		"POD VM":                                                         "is for a machine that is no pod",
		"--external-target vm-1 --spiffe-endpoint-socket unix:///a":      "as namespace/name",
		"--external-target red/vm-1":                                     "--server is empty",
		"VM --tls-ca-file x":                                             "needs a client certificate",
		"VM --tls-cert-file x --tls-key-file y --token-file z":           "exclude each other",
	} {
		t.Run(line, func(t *testing.T) {
			args := strings.Fields(strings.NewReplacer("POD", "--pod-name web-0 --pod-namespace red", "VM", "--external-target red/vm-1 --server nsp:1").Replace(line))
			code, _, stderr := command(t.Context(), args...)
			require.Equal(t, cli.ExitUsage, code, stderr)
			require.Contains(t, stderr, says)
			require.Contains(t, stderr, "--help")
		})
	}
}

// A second sidecar with the same state file does nothing but say so.
func TestSecondSidecar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	first, err := sidecar.OpenState(path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer first.Close()
	code, _, stderr := command(t.Context(), "--pod-name=web-0", "--pod-namespace=red", "--state-file="+path)
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, stderr, path+" is another sidecar's")
}

// Every flag and command says what it is for.
func TestHelp(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		require.NotEmpty(t, c.Short, c.CommandPath())
		code, out, _ := command(t.Context(), append(strings.Fields(c.CommandPath())[1:], "--help")...)
		require.Zero(t, code)
		require.NotEmpty(t, out)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRoot())
	code, out, _ := command(t.Context(), "version")
	require.Zero(t, code)
	require.Equal(t, cli.Version+"\n", out)
	code, out, _ = command(t.Context(), "__complete", "--transport", "")
	require.Zero(t, code)
	require.Contains(t, out, "spiffe")
}

// The status is a table for people and JSON for scripts.
func TestStatus(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin.sock")
	code, _, stderr := command(t.Context(), "status", "--admin-socket", socket)
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, stderr, "is the sidecar running in this container?")

	status := sidecar.Status{
		NSP: sidecar.LinkStatus{Address: "nsp:1", Connected: true}, Connector: sidecar.LinkStatus{Address: "/t", Error: "nobody listens"},
		Streams: []sidecar.StreamStatus{{Trench: "a", Conduit: "c", Name: "one", Status: tapa.Pending, Owners: []string{"application", "pool"}}},
	}
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(status)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	defer func() { _ = server.Close(); <-done }()

	code, out, _ := command(t.Context(), "status", "--admin-socket", socket)
	require.Zero(t, code)
	require.Equal(t, "NSP        nsp:1  connected\nCONNECTOR  /t     away: nobody listens\n\n"+
		"TRENCH  CONDUIT  STREAM  STATUS   OWNERS            LAST ERROR\na       c        one     PENDING  application,pool  -\n", out)
	code, out, _ = command(t.Context(), "status", "--admin-socket", socket, "-o", "json")
	require.Zero(t, code)
	var got sidecar.Status
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, status, got)
	status.Streams = nil
	_, out, _ = command(t.Context(), "status", "--admin-socket", socket)
	require.Contains(t, out, "Nobody wants a stream.")
}

// The sidecar runs without NSP and TAPA, answers probes by both names, and ends within its time.
func TestRunsAlone(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	var stderr string
	go func() {
		var code int
		code, _, stderr = command(ctx, "--pod-name=web-0", "--pod-namespace=red", "--server=127.0.0.1:1", "--tap-socket="+file("tap"),
			"--ambassador-socket="+file("tapa"), "--state-file="+file("state"), "--health-socket="+file("health"), "--admin-socket="+file("admin"))
		done <- code
	}()
	require.Eventually(t, func() bool {
		code, _, _ := command(ctx, "probe", "--addr=unix://"+file("health"), "--service=Startup")
		return code == cli.ExitOK
	}, 10*time.Second, 10*time.Millisecond)
	var out bytes.Buffer
	require.Zero(t, execute(ctx, []string{"/bin/grpc_health_probe", "-addr=unix://" + file("health"), "-service=Liveness"}, &out, &out), out.String())
	code, _, says := command(ctx, "probe", "--addr=unix://"+file("health"), "--service=NSP")
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, says, "NOT_SERVING")
	require.Eventually(t, func() bool {
		_, table, _ := command(ctx, "status", "--admin-socket", file("admin"))
		return strings.Contains(table, "is the TAPA running")
	}, 10*time.Second, 10*time.Millisecond)
	cancel()
	require.Zero(t, <-done, stderr)
}
