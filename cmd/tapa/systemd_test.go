package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/cli"
)

func systemdFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "deployments", "systemd", name))
	require.NoError(t, err)
	return string(data)
}

var assignment = regexp.MustCompile(`(?m)^(?:Environment=|#)?((?:NSP|SPIFFE)_[A-Z_]+)=(\S*)$`)

// Every variable of the unit and of its environment is a flag, in both ways of having an identity, and the program takes them.
func TestSystemdEnvironment(t *testing.T) {
	unit, env := systemdFile(t, "meridio-tapa.service"), systemdFile(t, "tapa.env")
	flags := newRoot().Flags()
	for _, by := range []string{"SPIFFE", "NSP_TLS"} {
		for _, one := range assignment.FindAllStringSubmatch(unit+"\n"+env, -1) {
			name, value := one[1], one[2]
			flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "NSP_"), "_", "-"))
			require.NotNil(t, flags.Lookup(flag), name)
			if identity := strings.HasPrefix(name, "SPIFFE") || strings.HasPrefix(name, "NSP_TLS"); !identity || strings.HasPrefix(name, by) {
				t.Setenv(name, value)
			} else {
				t.Setenv(name, "")
				require.NoError(t, os.Unsetenv(name))
			}
		}
		code, _, stderr := command(t.Context(), "--log-level=none")
		require.Equal(t, cli.ExitUsage, code)
		require.Contains(t, stderr, "choose debug, info, warn or error", "all but that is well")
	}
}

// The unit lets the sidecar do little, and is one that systemd takes, where there is one to ask.
func TestSystemdUnit(t *testing.T) {
	unit := systemdFile(t, "meridio-tapa.service")
	for _, line := range []string{"ExecStart=/usr/local/bin/tapa", "NoNewPrivileges=yes", "ProtectSystem=strict"} {
		require.Contains(t, unit, line+"\n")
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("there is no systemd-analyze to verify it")
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "meridio-tapa.service")
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(unit, "/usr/local/bin/tapa", self)), 0o600))
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))
	out, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", "--no-pager", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
