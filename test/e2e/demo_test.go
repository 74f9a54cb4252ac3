package e2e

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/demo/stage"
	"github.com/nordix/meridio-nsp/test/netns"
)

// The demo checks each thing that it shows; here it is only played, on a cluster of its own.
func TestDemo(t *testing.T) {
	cluster.SkipIfShort(t)
	var out bytes.Buffer
	results := t.TempDir()
	code := stage.Run(t.Context(), stage.Config{Out: io.MultiWriter(&out, t.Output()), Results: results})
	require.Zero(t, code)
	require.Contains(t, out.String(), "The demo went as it should")
	expected := []string{
		"Pod web-2 turns NotReady",
		"stream-a no longer goes to web-2 (NotReady)",
		"red   fast path on",
		"blue  fast path off",
		"no load balancer stopped sending to anybody meanwhile",
		"The trench process is killed",
		"EndpointSlice event -> lb-old, by its trench",
		"the load balancer of green sends stream-a to vm-1, web-1",
		"Medians of 10 flips",
	}
	if netns.Available() == nil {
		expected = append(expected, "has the TAPA open stream-a", "What was lost of 2000 UDP packets", "real-15 dies", "sum of deaths", results)
		for _, file := range []string{"packets.txt", "packets.svg"} {
			require.FileExists(t, filepath.Join(results, file))
		}
	}
	for _, says := range expected {
		require.Contains(t, out.String(), says)
	}
	for line := range bytes.Lines(out.Bytes()) {
		require.LessOrEqual(t, utf8.RuneCount(bytes.TrimSuffix(line, []byte("\n"))), 100, "%s", line)
	}
	require.NotContains(t, out.String(), "\x1b", "colours are for terminals")
}
