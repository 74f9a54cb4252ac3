package cluster_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/cluster"
)

// roleVariable makes this test binary play a test run that comes to a bad end.
const roleVariable = "NSP_TEST_CLUSTER_ROLE"

// TestVictim is the body of such a run. By itself it has nothing to show, and a skip would say that something was left out.
func TestVictim(t *testing.T) {
	role := os.Getenv(roleVariable)
	if role == "" {
		return
	}
	c := cluster.Get(t)
	fmt.Println("dir", c.Dir())
	for _, pid := range c.PIDs() {
		fmt.Println("pid", pid)
	}
	fmt.Println("started", 0)
	if role == "panic" {
		panic("asked to")
	}
	select {}
}

func TestNothingSurvives(t *testing.T) {
	cluster.SkipIfShort(t)
	if os.Getenv(cluster.EnvKubeconfig) != "" {
		t.Skip("needs a cluster of its own")
	}
	tests := map[string]struct {
		signal  os.Signal
		removed bool // a run that cannot clean up leaves its directory to the next one
	}{
		"panic":     {},
		"killed":    {signal: syscall.SIGKILL},
		"interrupt": {signal: os.Interrupt, removed: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$")
			cmd.Env = append(os.Environ(), roleVariable+"="+name, "TMPDIR="+t.TempDir())
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			dir, pids := readVictim(t, bufio.NewScanner(stdout))
			if test.signal != nil {
				require.NoError(t, cmd.Process.Signal(test.signal))
			}
			require.Error(t, cmd.Wait())
			requireGone(t, pids)
			if test.removed {
				require.NoDirExists(t, dir)
			}
		})
	}
}

// readVictim reads what TestVictim prints.
func readVictim(t *testing.T, lines *bufio.Scanner) (dir string, pids []int) {
	t.Helper()
	for lines.Scan() {
		var key, value string
		if _, err := fmt.Sscan(lines.Text(), &key, &value); err != nil {
			continue
		}
		switch key {
		case "dir":
			dir = value
		case "pid":
			var pid int
			_, err := fmt.Sscan(value, &pid)
			require.NoError(t, err)
			require.True(t, alive(pid))
			pids = append(pids, pid)
		case "started":
			require.Len(t, pids, 3)
			return dir, pids
		}
	}
	t.Fatal("the victim did not start")
	return "", nil
}
