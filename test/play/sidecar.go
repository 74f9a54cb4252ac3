package play

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nordix/meridio-nsp/pkg/tapa/sidecar"
	"github.com/nordix/meridio-nsp/test/process"
)

// SidecarConfig says how to run the tapa program.
type SidecarConfig struct {
	Namespace, Pod, PodUID string
	// ExternalTarget, instead of the pod, is the machine that it runs on, by its name.
	ExternalTarget string
	// NSP is the address of the namespace process.
	NSP string
	// Dir has sockets, state and log; it outlives restarts. Its path must be short.
	Dir string
	// Netns is the network namespace to run in, a name of ip-netns; empty is the present one.
	Netns string
	// Thread, if set, is called first on the thread that starts the program, as that of process.Config.
	Thread func() error
	// Args are added to the command line.
	Args []string
	// Wrapper is a command line that runs the program, as one that takes privileges away; empty runs it as it is.
	Wrapper []string
}

// Sidecar is a process of the tapa program that can be stopped, killed and started again.
type Sidecar struct {
	cfg     SidecarConfig
	binary  string
	process *process.Process
}

// StartSidecar starts a process.
func StartSidecar(ctx context.Context, cfg SidecarConfig) (*Sidecar, error) {
	nsp, err := Build(ctx)
	if err != nil {
		return nil, err
	}
	s := &Sidecar{cfg: cfg, binary: filepath.Join(filepath.Dir(nsp), "tapa")}
	return s, s.Start()
}

// Start starts the process again after Stop or Kill.
func (s *Sidecar) Start() error {
	log, err := os.OpenFile(s.file("tapa.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of the sidecar: %w", err)
	}
	defer log.Close()
	who := []string{"--pod-name=" + s.cfg.Pod, "--pod-namespace=" + s.cfg.Namespace, "--pod-uid=" + s.cfg.PodUID}
	if s.cfg.ExternalTarget != "" {
		who = []string{"--external-target=" + s.cfg.Namespace + "/" + s.cfg.ExternalTarget}
	}
	path, args := s.binary, append(append(who,
		"--server="+s.cfg.NSP, "--tap-socket="+s.TapSocket(), "--ambassador-socket="+s.AmbassadorSocket(),
		"--state-file="+s.file("state.json"), "--health-socket="+s.file("health.sock"), "--admin-socket="+s.file("admin.sock"),
		"--log-level=debug",
	), s.cfg.Args...)
	if w := s.cfg.Wrapper; len(w) > 0 {
		path, args = w[0], slices.Concat(w[1:], []string{path}, args)
	}
	if s.cfg.Netns != "" {
		path, args = "ip", append([]string{"netns", "exec", s.cfg.Netns, path}, args...)
	}
	s.process, err = process.Start(process.Config{Path: path, Args: args, Output: log, Thread: s.cfg.Thread})
	return err
}

func (s *Sidecar) file(name string) string { return filepath.Join(s.cfg.Dir, name) }

// TapSocket is what the application uses.
func (s *Sidecar) TapSocket() string { return s.file("tap.sock") }

// AmbassadorSocket is where the TAPA is to serve.
func (s *Sidecar) AmbassadorSocket() string { return s.file("tapa.sock") }

// HealthSocket answers probes.
func (s *Sidecar) HealthSocket() string { return s.file("health.sock") }

// Dial opens a connection to one of its sockets.
func (s *Sidecar) Dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dialling the sidecar: %w", err)
	}
	return conn, nil
}

// Status is what the process says of itself; ok is false while it does not answer.
func (s *Sidecar) Status(ctx context.Context) (st sidecar.Status, ok bool) {
	st, err := sidecar.AskStatus(ctx, s.file("admin.sock"), time.Second)
	return st, err == nil
}

// Process is the running program.
func (s *Sidecar) Process() *process.Process { return s.process }

// Stop ends the process as Kubernetes would.
func (s *Sidecar) Stop() { s.process.Stop(30 * time.Second) }

// Kill ends the process without warning.
func (s *Sidecar) Kill() { s.process.Kill() }

// Log is all that it has said.
func (s *Sidecar) Log() []byte {
	data, _ := os.ReadFile(s.file("tapa.log"))
	return data
}
