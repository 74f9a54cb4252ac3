package cli

import (
	"bytes"
	"errors"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A program says what went wrong line by line, and where to look when it was the command line.
func TestExecute(t *testing.T) {
	for name, want := range map[string]struct {
		err  error
		code int
		says string
	}{
		"well":            {},
		"failed":          {errors.New("one\ntwo"), ExitFailed, "Error: one\nError: two\n"},
		"usage":           {Usage(errors.New("one")), ExitUsage, "Error: one\nRun 'x --help' for all there is.\n"},
		"usage of nobody": {Usage(nil), ExitOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return want.err }}
			var stderr bytes.Buffer
			require.Equal(t, want.code, Execute(t.Context(), root, []string{"x"}, &bytes.Buffer{}, &stderr))
			require.Equal(t, want.says, stderr.String())
		})
	}
}

// Every flag has its variable; the command line wins, and what Kubernetes injects is named.
func TestFromEnvironment(t *testing.T) {
	t.Setenv("NSP_FOO_BAR", "3")
	t.Setenv("NSP_PORT", "tcp://10.0.0.1:7778")
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", "unix:///agent.sock")
	cmd := &cobra.Command{}
	foo := cmd.Flags().Int("foo-bar", 1, "")
	socket := cmd.Flags().String(SPIFFEFlag, "", "")
	require.NoError(t, FromEnvironment(cmd.Flags()))
	require.Equal(t, 3, *foo)
	require.Equal(t, "unix:///agent.sock", *socket)
	require.NoError(t, cmd.Flags().Set("foo-bar", "4"))
	require.NoError(t, FromEnvironment(cmd.Flags()))
	require.Equal(t, 4, *foo)
	cmd.Flags().Int("port", 1, "")
	require.ErrorContains(t, FromEnvironment(cmd.Flags()), "enableServiceLinks: false")
}
