package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/lb/nft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A command line that makes no sense is refused before anything is touched.
func TestUsage(t *testing.T) {
	for says, args := range map[string][]string{
		"--trench and --conduit are required":      {},
		"unknown command":                          {"balance"},
		"unknown flag":                             {"--foo"},
		"--tls-* flags are given":                  {"--trench=t", "--conduit=c", "--transport=plaintext", "--tls-ca-file=x"},
		"--token-file needs":                       {"--trench=t", "--conduit=c", "--token-file=x"},
		`--src: "" is no IP address`:               {"trace", "--dst=20.0.0.1"},
		"--proto: the protocol \"gre\" is none of": {"trace", "--src=1.1.1.1", "--dst=20.0.0.1", "--proto=gre"},
		"--header":                                 {"trace", "--src=1.1.1.1", "--dst=20.0.0.1", "--header=x"},
		"choose table or json":                     {"trace", "--src=1.1.1.1", "--dst=20.0.0.1", "-o=xml"},
	} {
		var out, err bytes.Buffer
		require.Equal(t, cli.ExitUsage, run(append([]string{"stateless-lb"}, args...), &out, &err), "%v: %s", args, err.String())
		require.Contains(t, err.String(), says)
	}
}

// Addresses follow from names, as the operator and the chart name Services.
func TestAddressesFollowFromNames(t *testing.T) {
	s := settings{}
	s.Trench, s.Conduit, s.Namespace = "trench-a", "c", "red"
	require.NoError(t, s.complete())
	require.Equal(t, "nsp-service-trench-a.red:7778", s.NSP)
	require.Equal(t, "nsp-service.red:7778", s.Feed)
	s.Feed = "none"
	require.NoError(t, s.complete())
	require.Empty(t, s.Feed)
}

func TestPrintTrace(t *testing.T) {
	trace := &nft.Trace{
		Steps: []nft.Step{{Chain: "prerouting", Text: "vips4 -> v4"}}, Forwarded: true, Flow: "f", Stream: "s", Identifier: 7, Via: "172.16.0.7",
	}
	var out bytes.Buffer
	require.NoError(t, printTrace(&out, trace, "table"))
	require.Equal(t, "prerouting  vips4 -> v4\n\nforwarded  to target 7 of stream s, by flow f, via 172.16.0.7\n", out.String())
	out.Reset()
	require.NoError(t, printTrace(&out, &nft.Trace{Why: "no flow of the VIP matches"}, "table"))
	require.Equal(t, "\nnot forwarded  no flow of the VIP matches\n", out.String())
	out.Reset()
	require.NoError(t, printTrace(&out, trace, "json"))
	require.Contains(t, out.String(), `"identifier": 7`)
}
