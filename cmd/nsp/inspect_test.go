package main

import (
	"encoding/json"
	"encoding/pem"
	"flag"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with testdata/name.
func golden(t *testing.T, name, have string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(path, []byte(have), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), have)
}

func TestTables(t *testing.T) {
	addr := serve(t, example())
	for name, args := range map[string][]string{
		"pools.txt":        {"pools"},
		"pools-wide.txt":   {"pools", "-o", "wide"},
		"pool.txt":         {"pools", "red/web"},
		"pool-wide.txt":    {"pools", "red/web", "-o", "wide"},
		"pool-empty.txt":   {"pools", "blue/db"},
		"pools-two.txt":    {"pools", "red/web", "red/odd"},
		"targets.txt":      {"targets"},
		"targets-wide.txt": {"targets", "-o", "wide"},
	} {
		t.Run(name, func(t *testing.T) {
			r := command(t, append(args, "--server", addr)...)
			require.Zero(t, r.code, r.stderr)
			require.Empty(t, r.stderr)
			golden(t, name, r.stdout)
		})
	}
}

func TestMachineOutput(t *testing.T) {
	f := example()
	addr := serve(t, f)
	pools, targets := &targetpoolv1.ListPoolsResponse{}, &targetpoolv1.ListTargetsResponse{}
	parse := func(format, text string, m proto.Message) {
		b := []byte(text)
		if format == asYAML {
			var err error
			b, err = yaml.YAMLToJSON(b)
			require.NoError(t, err)
		}
		require.NoError(t, protojson.Unmarshal(b, m))
	}
	for _, format := range []string{asJSON, asYAML} {
		parse(format, command(t, "pools", "-o", format, "--server", addr).stdout, pools)
		require.True(t, proto.Equal(&targetpoolv1.ListPoolsResponse{Pools: f.pools}, pools))
		parse(format, command(t, "targets", "trench-a/lb", "-o", format, "--server", addr).stdout, targets)
		require.True(t, proto.Equal(&targetpoolv1.ListTargetsResponse{Targets: f.targets}, targets))
	}
	var plain struct{ Pools []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(command(t, "pools", "-o", "json", "--server", addr).stdout), &plain))
	require.Equal(t, false, plain.Pools[1]["accepted"], "what is false is there too")
}

func TestTargetsOfAStream(t *testing.T) {
	f := example()
	addr := serve(t, f)
	for arg, want := range map[string]*targetpoolv1.Stream{
		"t":     {Trench: "t"},
		"t/c":   {Trench: "t", Conduit: "c"},
		"t/c/s": {Trench: "t", Conduit: "c", Name: "s"},
	} {
		require.Zero(t, command(t, "targets", arg, "--server", addr).code)
		require.True(t, proto.Equal(want, f.asked), "%v", f.asked)
	}
}

func TestNothingToShow(t *testing.T) {
	addr := serve(t, &fake{})
	r := command(t, "pools", "--server", addr)
	require.Equal(t, ran{stderr: "No Service is a pool. One that bears the label service.kubernetes.io/service-proxy-name=meridio-target-pool-service is.\n"}, r)
	require.Equal(t, ran{stderr: "Nothing like that is registered.\n"}, command(t, "targets", "--server", addr))
	r = command(t, "pools", "-o", "json", "--server", addr)
	require.JSONEq(t, `{"pools": []}`, r.stdout)
	fails(t, exitFailed, []string{"pools", "red/web", "blue/db", "--server", addr}, "no Service red/web is a pool", "no Service blue/db is a pool")
}

// What goes wrong is told together with what to do next.
func TestConnectionErrors(t *testing.T) {
	plaintext := serve(t, example())
	secure, ca := serveTLS(t, example())
	for name, tt := range map[string]struct {
		args []string
		says []string
	}{
		"nobody there":         {[]string{"--server", "127.0.0.1:1"}, []string{"127.0.0.1:1", "refused", "is the NSP running?", "kubectl port-forward svc/nsp-service 7778"}},
		"plaintext to TLS":     {[]string{"--server", secure}, []string{secure, "set --tls-ca-file"}},
		"TLS to plaintext":     {[]string{"--server", plaintext, "--tls-server-name", "x"}, []string{"leave the --tls-* flags away"}},
		"unknown authority":    {[]string{"--server", secure, "--tls-server-name", "example.com"}, []string{"set --tls-ca-file"}},
		"other name":           {[]string{"--server", secure, "--tls-ca-file", ca, "--tls-server-name", "nsp"}, []string{"set --tls-server-name"}},
		"no such CA":           {[]string{"--server", secure, "--tls-ca-file", "/nowhere/ca"}, []string{"/nowhere/ca"}},
		"no CA":                {[]string{"--server", secure, "--tls-ca-file", "/dev/null"}, []string{"/dev/null", "no certificate"}},
		"silent":               {[]string{"--server", serve(t, &fake{silent: true}), "--timeout", "50ms"}, []string{"within 50ms", "--timeout"}},
		"no inspector":         {[]string{"--server", serveOn(t, grpc.NewServer(), "tcp", "127.0.0.1:0")}, []string{"svc/nsp-service"}},
		"refused by the rules": {[]string{"--server", serve(t, &fake{err: status.Error(codes.PermissionDenied, "use kubectl port-forward")})}, []string{"PermissionDenied", "use kubectl port-forward"}},
	} {
		t.Run(name, func(t *testing.T) { fails(t, exitFailed, append([]string{"pools"}, tt.args...), tt.says...) })
	}
	r := command(t, "pools", "--server", secure, "--tls-ca-file", ca)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "web")
}

// serveTLS is the fake behind the certificate of net/http/httptest.
func serveTLS(t *testing.T, f *fake) (addr, ca string) {
	h := httptest.NewTLSServer(nil)
	defer h.Close()
	ca = filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}), 0o600))
	return serve(t, f, grpc.Creds(credentials.NewServerTLSFromCert(&h.TLS.Certificates[0]))), ca
}

func TestCompletion(t *testing.T) {
	t.Setenv("NSP_SERVER", serve(t, example()))
	for words, want := range map[string]string{
		"pools ":                      "red/web blue/db red/odd",
		"pools red/web ":              "blue/db red/odd",
		"targets ":                    "trench-a/lb/http trench-a/lb/sql",
		"watch feed ":                 "trench-a/lb",
		"watch assignments ":          "red/web-0 red/web-1 red/web-2",
		"pools -o ":                   "table wide json yaml",
		"namespace --transport ":      "plaintext tls spiffe",
		"namespace --log-level ":      "debug info warn error",
		"pools --server 127.0.0.1:1 ": "",
	} {
		t.Run(words, func(t *testing.T) {
			r := command(t, append([]string{"__complete"}, strings.Split(words, " ")...)...)
			offered, _, _ := strings.Cut(r.stdout, ":")
			require.Equal(t, want, strings.Join(strings.Fields(offered), " "))
		})
	}
}
