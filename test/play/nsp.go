// Package play has the parts that tests, demo and bench play around a real namespace process: the process itself, and
// clients that behave as a TAPA and a load balancer do.
package play

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/process"
)

// NSPConfig says how to run a process of the NSP.
type NSPConfig struct {
	Namespace  string
	Kubeconfig string
	// Trench makes it the process of that trench, started as Meridio's operator does: without a command, by environment. Else
	// it is a namespace process.
	Trench string
	// Dir keeps registry, log and socket; it outlives restarts.
	Dir string
	// Args are added to the command line; they win over the defaults here.
	Args []string
	// Credentials are those of clients; default insecure.
	Credentials credentials.TransportCredentials
	// Binary is the nsp program; default what Build makes.
	Binary string
}

// NSP is a process of the NSP that can be stopped, killed and started again with the same ports and data.
type NSP struct {
	cfg     NSPConfig
	port    int
	metrics int
	process *process.Process
}

// Build builds the nsp program, unless NSP_TEST_BINARY names one, and returns its path. Go's build cache makes it cheap to
// call again.
func Build(ctx context.Context) (string, error) {
	if path := os.Getenv("NSP_TEST_BINARY"); path != "" {
		return path, nil
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/nordix/meridio-nsp").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	root := strings.TrimSpace(string(out))
	path := filepath.Join(root, "bin", "nsp")
	cmd := exec.CommandContext(ctx, "make", "-s", "build")
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "MAKEFLAGS=") // not those of a make that runs us
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building nsp: %w\n%s", err, output.Bytes())
	}
	return path, nil
}

// StartNSP starts a process of the NSP and waits until it is ready.
func StartNSP(ctx context.Context, cfg NSPConfig) (*NSP, error) {
	if cfg.Credentials == nil {
		cfg.Credentials = insecure.NewCredentials()
	}
	if cfg.Binary == "" {
		binary, err := Build(ctx)
		if err != nil {
			return nil, err
		}
		cfg.Binary = binary
	}
	n := &NSP{cfg: cfg}
	for _, port := range []*int{&n.port, &n.metrics} {
		p, err := cluster.FreePort()
		if err != nil {
			return nil, err
		}
		*port = p
	}
	return n, n.Start(ctx)
}

// Start starts the process again after Stop or Kill, and waits until it is ready.
func (n *NSP) Start(ctx context.Context) error {
	log, err := os.OpenFile(n.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of the process: %w", err)
	}
	defer log.Close()
	n.process, err = process.Start(process.Config{Path: n.cfg.Binary, Args: n.args(), Env: n.env(), Output: log})
	if err != nil {
		return err
	}
	if err := n.waitReady(ctx); err != nil {
		n.process.Kill()
		return fmt.Errorf("the process does not get ready: %w\n%s", err, n.LogTail())
	}
	return nil
}

func (n *NSP) args() []string {
	if n.cfg.Trench != "" {
		return n.cfg.Args
	}
	return append([]string{
		"namespace",
		"--namespace=" + n.cfg.Namespace,
		"--kubeconfig=" + n.cfg.Kubeconfig,
		"--port=" + strconv.Itoa(n.port),
		"--metrics-address=127.0.0.1:" + strconv.Itoa(n.metrics),
		"--health-socket=" + n.HealthSocket(),
		"--datasource=" + filepath.Join(n.cfg.Dir, "registry.db"),
		"--log-level=debug",
	}, n.cfg.Args...)
}

// env is what the operator sets for a trench process, and after that what two of them on one machine need.
func (n *NSP) env() []string {
	if n.cfg.Trench == "" {
		return nil
	}
	return []string{
		"NSP_PORT=" + strconv.Itoa(n.port),
		"NSP_NAMESPACE=" + n.cfg.Namespace,
		"NSP_CONFIG_MAP_NAME=meridio-configuration-" + n.cfg.Trench,
		"NSP_DATASOURCE=" + filepath.Join(n.cfg.Dir, "registry.db"),
		"NSP_LOG_LEVEL=DEBUG",
		"NSP_GRPC_PROBE_RPC_TIMEOUT=1s",
		"NSP_KUBECONFIG=" + n.cfg.Kubeconfig,
		"NSP_METRICS_ADDRESS=127.0.0.1:" + strconv.Itoa(n.metrics),
		"NSP_HEALTH_SOCKET=" + n.HealthSocket(),
	}
}

// HealthSocket is the unix socket that answers probes.
func (n *NSP) HealthSocket() string { return filepath.Join(n.cfg.Dir, "health.sock") }

func (n *NSP) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := n.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	health := grpc_health_v1.NewHealthClient(conn)
	for {
		resp, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "Readiness"}, grpc.WaitForReady(true))
		if err == nil && resp.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
			return nil
		}
		select {
		case <-n.process.Exited():
			return errors.New("it ended")
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Address is where the gRPC services are.
func (n *NSP) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }

// MetricsURL is where the metrics are.
func (n *NSP) MetricsURL() string { return fmt.Sprintf("http://127.0.0.1:%d/metrics", n.metrics) }

// Credentials are those that clients need.
func (n *NSP) Credentials() credentials.TransportCredentials { return n.cfg.Credentials }

// Dial opens a connection to the gRPC services.
func (n *NSP) Dial() (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(n.Address(), grpc.WithTransportCredentials(n.cfg.Credentials))
	if err != nil {
		return nil, fmt.Errorf("dialling the process: %w", err)
	}
	return conn, nil
}

// Binary is the program that runs.
func (n *NSP) Binary() string { return n.cfg.Binary }

// Restart kills the process and starts it again.
func (n *NSP) Restart(ctx context.Context) error {
	n.Kill()
	return n.Start(ctx)
}

// PID is the process ID.
func (n *NSP) PID() int { return n.process.PID() }

// Process is the running program.
func (n *NSP) Process() *process.Process { return n.process }

// Stop ends the process as Kubernetes would.
func (n *NSP) Stop() { n.process.Stop(15 * time.Second) }

// Kill ends the process without warning.
func (n *NSP) Kill() { n.process.Kill() }

// LogFile is where the process logs.
func (n *NSP) LogFile() string { return filepath.Join(n.cfg.Dir, "nsp.log") }

// LogTail is the end of the log, for error messages.
func (n *NSP) LogTail() []byte {
	data, _ := os.ReadFile(n.LogFile())
	return data[max(0, len(data)-4096):]
}
