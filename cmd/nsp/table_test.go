package main

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Painted tables are aligned as unpainted ones are.
func TestPaintKeepsColumns(t *testing.T) {
	f := example()
	print := func(b brush) string {
		var out bytes.Buffer
		require.NoError(t, poolTable(b, f.pools, true).print(&out))
		require.NoError(t, memberTable(b, f.pools[0].GetMembers(), true).print(&out))
		require.NoError(t, targetTable(b, f.targets, true).print(&out))
		return out.String()
	}
	painted := print(true)
	require.Contains(t, painted, "\x1b[32mACTIVE\x1b[0m")
	require.Contains(t, painted, "\x1b[31mINACTIVE\x1b[0m")
	require.Equal(t, print(false), regexp.MustCompile(`\x1b\[\d*m`).ReplaceAllString(painted, ""))
}

func TestPaintOnTerminalsOnly(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	require.False(t, bool(brushFor(&bytes.Buffer{})))
	file, err := os.Create(t.TempDir() + "/file")
	require.NoError(t, err)
	defer file.Close()
	require.False(t, bool(brushFor(file)))
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Logf("no terminal to be had: %v", err)
		return
	}
	defer terminal.Close()
	require.True(t, bool(brushFor(terminal)))
	t.Setenv("NO_COLOR", "1")
	require.False(t, bool(brushFor(terminal)))
}
