package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/nsp"
)

// A command line that makes no sense ends with 2 and a sentence that says what to do.
func TestUsageErrors(t *testing.T) {
	for line, says := range map[string]string{
		"bogus":             `unknown command "bogus"`,
		"explian pod/web-0": `unknown command "explian": did you mean explain?`,
		"watch bogus":       `unknown command "bogus"`,
		"version now":       `unknown command "now"`,
		"namespace --bogus": "unknown flag: --bogus",
		"namespace":         "--namespace is empty",
		"namespace red":     `"red"`,
		"":                  "--namespace is empty",
		"--config-map-name UPPER --namespace red": "--config-map-name is no name of a ConfigMap",
		"trench":                                  "--namespace is empty",
		"trench red":                              `"red"`,
		"trench --bogus":                          "unknown flag: --bogus",
		"trench --namespace red --log-level x":    "choose debug, info, warn or error",
		"namespace --namespace red --port many":   `invalid argument "many" for "--port"`,
		"namespace --namespace red --port 70000":  "--port is 70000",
		"namespace --namespace red --transport x": "choose one of plaintext, tls",
		"namespace --namespace red --log-level x": "choose debug, info, warn or error",
		"pools web":                               `"web" is no pool: write namespace/name`,
		"pools a/b/c":                             `"a/b/c" is no pool`,
		"pools -o xml":                            "choose one of table, wide, json, yaml",
		"pools --server=":                         "--server is empty",
		"pools --timeout 0s":                      "--timeout is 0s",
		"pools --tls-cert-file x":                 "set both or none",
		"targets --pod web-0":                     "write namespace/name, or none",
		"targets a//c":                            "write trench",
		"targets a b":                             "write trench",
		"targets a/b/c/d":                         "write trench",
		"watch feed":                              "write trench/conduit",
		"watch feed a":                            "write trench/conduit",
		"watch feed a/b/c":                        "write trench/conduit",
		"watch feed a/b -o xml":                   "choose one of",
		"watch assignments":                       "write namespace/pod",
		"watch assignments web-0":                 "write namespace/pod",
		"watch assignments a/b c/d":               "write namespace/pod",
		"watch assignments a/b --address 1.2.3.4": "not both",
		"watch assignments --address web":         `--address is "web"`,
	} {
		t.Run(line, func(t *testing.T) {
			fails(t, exitUsage, strings.Fields(line), says, "Error: ", "--help' for all there is")
		})
	}
}

// started runs a namespace process that fails when it looks for its cluster, which is after all flags have been judged.
func started(t *testing.T, args ...string) ran {
	t.Helper()
	return command(t, append([]string{
		"namespace", "--namespace", "red", "--kubeconfig", "/nowhere/config", "--datasource", filepath.Join(t.TempDir(), "registry.db"),
	}, args...)...)
}

func TestEnvironment(t *testing.T) {
	for name, tt := range map[string]struct {
		env  [2]string
		args []string
		code int
		says string
	}{
		"a variable stands for its flag":       {[2]string{"NSP_PORT", "70000"}, nil, exitUsage, "--port is 70000"},
		"the flag wins":                        {[2]string{"NSP_PORT", "70000"}, []string{"--port", "7778"}, exitFailed, "/nowhere/config"},
		"dashes are underscores":               {[2]string{"NSP_ENTRY_TIMEOUT", "-1s"}, nil, exitUsage, "--entry-timeout is -1s"},
		"what does not fit is named":           {[2]string{"NSP_ENTRY_TIMEOUT", "soon"}, nil, exitUsage, `NSP_ENTRY_TIMEOUT="soon" does not fit --entry-timeout`},
		"a Service called nsp-service":         {[2]string{"NSP_SERVICE_PORT", "tcp://10.0.0.1:7778"}, nil, exitFailed, "/nowhere/config"},
		"a Service called nsp":                 {[2]string{"NSP_PORT", "tcp://10.0.0.1:7778"}, nil, exitUsage, "comes from a Kubernetes Service"},
		"unknown ones are ignored":             {[2]string{"NSP_BOGUS", "1"}, nil, exitFailed, "/nowhere/config"},
		"those of flags that are no setting":   {[2]string{"NSP_VERSION", "v1.2"}, nil, exitFailed, "/nowhere/config"},
		"the specification's, unprefixed":      {[2]string{"SPIFFE_ENDPOINT_SOCKET", "agent"}, nil, exitUsage, `--spiffe-endpoint-socket is "agent"`},
		"an empty one is a value as any other": {[2]string{"NSP_METRICS_ADDRESS", ""}, nil, exitFailed, "/nowhere/config"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(tt.env[0], tt.env[1])
			r := started(t, tt.args...)
			require.Equal(t, tt.code, r.code, r.stderr)
			require.Contains(t, r.stderr, tt.says)
		})
	}
}

// Everything that Meridio's operator sets, or people set in its template, and more.
func TestOperatorsEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"NSP_PORT": "7778", "NSP_NAMESPACE": "red", "NSP_CONFIG_MAP_NAME": "meridio-configuration-trench-a", "NSP_ENTRY_TIMEOUT": "60s",
		"NSP_DATASOURCE": filepath.Join(t.TempDir(), "registry.db"), "NSP_GRPC_PROBE_RPC_TIMEOUT": "1s", "NSP_KUBECONFIG": "/nowhere/config",
	} {
		t.Setenv(name, value)
	}
	for _, level := range []string{"TRACE", "trace", "DEBUG", "Info", "WARN", "warning", "ERROR", "CRITICAL", "fatal", ""} {
		t.Setenv("NSP_LOG_LEVEL", level)
		for _, args := range [][]string{nil, {"trench"}, {"namespace"}} {
			r := command(t, args...)
			require.Equal(t, exitFailed, r.code, r.stderr)
			require.Contains(t, r.stderr, "/nowhere/config")
		}
	}
}

// SIGUSR2 shows all, SIGUSR1 what was configured.
func TestSignalsChangeTheLogLevel(t *testing.T) {
	reader, writer := io.Pipe()
	lines := bufio.NewScanner(reader)
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer writer.Close()
		ended <- runProcess(ctx, writer, "warn", func(ctx context.Context, log *slog.Logger) error {
			log.Warn("started")
			<-ctx.Done()
			log.Debug("unseen")
			log.Error("ended")
			return nil
		})
	}()
	heard := func(words ...string) {
		t.Helper()
		require.True(t, lines.Scan())
		for _, w := range words {
			require.Contains(t, lines.Text(), w)
		}
	}
	heard("started")
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR2))
	heard("log level changed", `"DEBUG"`)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	heard("log level changed", `"WARN"`)
	stop()
	heard("ended")
	require.NoError(t, <-ended)
}

// Every command says what it is for, and those with arguments give an example.
func TestHelp(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		require.NotEmpty(t, cmd.Short, cmd.CommandPath())
		if strings.Contains(cmd.Use, " ") {
			require.NotEmpty(t, cmd.Example, cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot())
	visit(cli.NewProbe())
	for _, args := range [][]string{{"--help"}, {"trench", "-h"}, {"watch"}, {"help", "watch", "feed"}, {"pools", "-h"}} {
		r := command(t, args...)
		require.Zero(t, r.code)
		require.Contains(t, r.stdout, "Usage:")
		require.Empty(t, r.stderr)
	}
	require.Equal(t, ran{stdout: nsp.Version + "\n"}, command(t, "version"))
}

func TestProbe(t *testing.T) {
	socket := "unix://" + filepath.Join(t.TempDir(), "health.sock")
	h := health.NewServer()
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, h)
	serveOn(t, s, "unix", strings.TrimPrefix(socket, "unix://"))
	h.SetServingStatus("Readiness", grpc_health_v1.HealthCheckResponse_SERVING)
	h.SetServingStatus("Startup", grpc_health_v1.HealthCheckResponse_NOT_SERVING)

	for line, want := range map[string]struct {
		code int
		says string
	}{
		"-addr=SOCKET -service=Readiness -connect-timeout=1m -rpc-timeout=1m": {exitOK, ""},
		"-addr SOCKET -service Readiness -connect-timeout 1m":                 {exitOK, ""},
		"--addr=SOCKET --connect-timeout=1m":                                  {exitOK, ""},
		"-addr=SOCKET -service=Startup -connect-timeout=1m":                   {exitFailed, `"Startup" is NOT_SERVING`},
		"-addr=SOCKET -service=Nobody -connect-timeout=1m":                    {exitFailed, `"Nobody"`},
		"-addr=unix:///nowhere/s -connect-timeout=10ms -rpc-timeout=10ms":     {exitFailed, "unix:///nowhere/s"},
		"-service=Readiness":             {exitUsage, "-addr is empty"},
		"-bogus":                         {exitUsage, "unknown flag"},
		"-addr=SOCKET more":              {exitUsage, `"more"`},
		"-addr=SOCKET -rpc-timeout=long": {exitUsage, `"long"`},
		"-h":                             {exitOK, ""},
	} {
		t.Run(line, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append([]string{"/bin/" + cli.ProbeName}, strings.Fields(strings.ReplaceAll(line, "SOCKET", socket))...)
			require.Equal(t, want.code, execute(t.Context(), args, &stdout, &stderr), stderr.String())
			require.Contains(t, stderr.String(), want.says)
		})
	}
}
