package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// writerEnv makes the test binary a process that registers targets and reserves identifiers in the file it names, and prints each
// address, and the identifier, once it is acknowledged.
const writerEnv = "TEST_REGISTRY_WRITER"

// TestKilledWhileWriting // P20
func TestKilledWhileWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registry.db")
	acknowledged := map[string]bool{}
	for round := range 4 {
		for ip := range killedWriter(t, path, 100*(round+1)) {
			acknowledged[ip] = true
		}
		s := mustOpen(t, path)
		saved, err := s.Load(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Close())
		stored, reserved := map[string]bool{}, map[string]bool{}
		for _, e := range saved.Entries {
			id := e.Context["identifier"]
			stored[e.IPs[0]+" "+id] = true
			require.Equal(t, id != "", e.Reserved)
			require.False(t, e.Reserved && reserved[id], "%s is reserved twice", id)
			reserved[id] = true
		}
		for ip := range acknowledged {
			require.True(t, stored[ip], "%s was acknowledged and is lost", ip)
		}
	}
	require.Empty(t, glob(t, path+".damaged-*"), "a kill is no damage")
}

// killedWriter kills a writer after it acknowledged some registrations, and returns all that it did acknowledge.
func killedWriter(t *testing.T, path string, enough int) map[string]bool {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writerEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	acknowledged := map[string]bool{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		acknowledged[lines.Text()] = true
		if len(acknowledged) == enough {
			require.NoError(t, cmd.Process.Kill())
		}
	}
	require.Error(t, cmd.Wait(), "it was killed")
	require.GreaterOrEqual(t, len(acknowledged), enough)
	return acknowledged
}

func writeUntilKilled(path string) {
	ctx := context.Background()
	s, err := Open(ctx, Config{Path: path})
	if err != nil {
		panic(err)
	}
	r := registry.New(registry.Config{Store: s, Namespace: "ns"})
	r.SetLimits("t", map[stream.Key]uint32{{Namespace: "ns", Trench: "t", Conduit: "c", Name: "s"}: 1 << 20})
	saved, err := r.Load(ctx)
	if err != nil {
		panic(err)
	}
	go r.Run(ctx) //nolint:errcheck // ends with the process
	var out sync.Mutex
	for worker := range 8 {
		go func() {
			for i := 0; ; i++ {
				ip := fmt.Sprintf("fd00::%x:%x:%x", saved.NextID, worker, i)
				line, err := ip+" ", error(nil)
				if worker%2 == 0 {
					err = r.Register(ctx, target(ip), registry.Caller{})
				} else {
					var id uint32
					id, err = r.Reserve(ctx, target(ip), registry.Caller{}, false)
					line += strconv.Itoa(int(id))
				}
				if err != nil {
					panic(err)
				}
				out.Lock()
				fmt.Println(line)
				out.Unlock()
			}
		}()
	}
	select {}
}

func target(ips ...string) registry.Target {
	return registry.Target{Stream: stream.Key{Trench: "t", Conduit: "c", Name: "s"}, IPs: ips, Status: registry.Enabled}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	require.NoError(t, err)
	return names
}
