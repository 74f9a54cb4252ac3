package e2e

import (
	"bytes"
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/workload"
)

// imageUser is the user of the image, as of that of Meridio 1.x.
const imageUser = 10003

// A container engine would be the real thing. The nearest that there is without one: the binary as the image's user, in a root
// that has nothing else and that the user cannot write to, with the chart's command line, volumes and probe.
func TestImageRunsOnReadOnlyRoot(t *testing.T) {
	c := cluster.Get(t)
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user in another root directory")
	}
	runtime.LockOSThread() // the kernel kills the program when the thread that started it ends
	defer runtime.UnlockOSThread()
	namespace := c.Namespace(t)
	require.NoError(t, chart.Install(t.Context(), c, namespace, nil))
	container := workload.PodOf(chartStatefulSet(t, c, namespace)).Spec.Containers[0]
	root := imageRoot(t)
	for _, mount := range container.VolumeMounts {
		dir := filepath.Join(root, mount.MountPath)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.Chown(dir, imageUser, imageUser))
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(t.Context(), namespace, chart.ServiceAccount)
	require.NoError(t, err)
	data, err := os.ReadFile(kubeconfig)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "kubeconfig"), data, 0o444))

	port, err := cluster.FreePort()
	require.NoError(t, err)
	args := append([]string{}, container.Args...)
	args = append(args, "--kubeconfig=/kubeconfig", "--port="+strconv.Itoa(port), "--metrics-address=127.0.0.1:0")
	nsp := inImage(t.Context(), root, "/bin/nsp", args...)
	nsp.Env = []string{"NSP_NAMESPACE=" + namespace}
	var log bytes.Buffer
	nsp.Stdout, nsp.Stderr = &log, &log
	require.NoError(t, nsp.Start())
	var end error
	ended := make(chan struct{})
	go func() { end = nsp.Wait(); close(ended) }()
	t.Cleanup(func() { _ = nsp.Process.Kill(); <-ended })

	probe := container.ReadinessProbe.Exec.Command
	deadline := time.Now().Add(patience)
	for {
		out, err := inImage(t.Context(), root, probe[0], probe[1:]...).CombinedOutput()
		if err == nil {
			break
		}
		require.True(t, time.Now().Before(deadline), "it does not get ready: %s", out)
	}
	require.FileExists(t, filepath.Join(root, "run/nsp/data/registry.db"))
	require.NoError(t, nsp.Process.Signal(syscall.SIGTERM))
	<-ended
	require.NoError(t, end, log.String())
}

// imageRoot has what the last stage of the Dockerfile has.
func imageRoot(t *testing.T) string {
	t.Helper()
	binary, err := play.Build(t.Context())
	require.NoError(t, err)
	root, err := os.MkdirTemp("", "nsp-image-") // t.TempDir is for this user only
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	require.NoError(t, os.Chmod(root, 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(root, "bin"), 0o755))
	data, err := os.ReadFile(binary)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "bin", "nsp"), data, 0o755))
	require.NoError(t, os.Symlink("nsp", filepath.Join(root, "bin", "grpc_health_probe")))
	return root
}

// inImage runs a program as the image's user with the image's root. It ends with this process.
func inImage(ctx context.Context, root, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: root, Credential: &syscall.Credential{Uid: imageUser, Gid: imageUser}, Pdeathsig: syscall.SIGKILL,
	}
	return cmd
}

// The Dockerfile makes that root: no base image, a user that is not root, a binary that needs no library.
func TestImage(t *testing.T) {
	binary, err := play.Build(t.Context())
	require.NoError(t, err)
	file, err := elf.Open(binary)
	require.NoError(t, err)
	defer file.Close()
	for _, p := range file.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "the binary is linked dynamically")
	}

	dockerfile, err := os.ReadFile(filepath.Join("..", "..", "deployments", "docker", "Dockerfile"))
	require.NoError(t, err)
	_, last, found := strings.Cut(string(dockerfile), "\nFROM scratch\n")
	require.True(t, found)
	require.Contains(t, last, "\nUSER 10003:10003\n")
	require.Contains(t, last, `ENTRYPOINT ["/bin/nsp"]`)
	require.NotContains(t, last, "FROM")
	require.NotContains(t, last, "RUN")
}
