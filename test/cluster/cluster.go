package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// EnvKubeconfig names the environment variable with the kubeconfig of an existing cluster to use.
const EnvKubeconfig = "NSP_TEST_KUBECONFIG"

const (
	startAttempts = 3               // a port may be taken between its choice and its use
	startTimeout  = 2 * time.Minute // generous: builds and tests may share the processors
	stopGrace     = 3 * time.Second // then SIGKILL: the data is thrown away
	pollInterval  = 20 * time.Millisecond
)

// ErrExternal is returned for what cannot be done to a cluster that was not started here.
var ErrExternal = errors.New("not possible with an existing cluster (" + EnvKubeconfig + ")")

// ErrStopped is what tests get that ask for the shared cluster after its end.
var ErrStopped = errors.New("the shared cluster was stopped")

// Config says how to start a cluster. The zero value will do.
type Config struct {
	Dir string    // work directory, made if need be and kept by Stop; default a temporary one that Stop removes
	Log io.Writer // progress of a first build; default standard error
	// Audit keeps a log of what ServiceAccounts ask, for Requests. An existing cluster has none.
	Audit bool
}

// Cluster is a running control plane. Its methods may be called concurrently, except Stop, StopAPIServer and
// StartAPIServer among themselves.
type Cluster struct {
	dir       string
	audit     bool
	temporary *workDir // nil where the caller named the directory
	bin       string
	adminFile string // kubeconfig
	config    *rest.Config
	http      *http.Client
	client    kubernetes.Interface
	stop      sync.Once
	stopped   bool

	launcher   *launcher // nil for an existing cluster, as are all below
	etcdPort   int
	apiPort    int
	apiArgs    []string
	etcd       *process
	api        *process
	controller *process

	kubelet kubelet
}

// Start starts a control plane, or connects to the one that NSP_TEST_KUBECONFIG names, and returns when it is ready for
// use. ctx bounds the start only. Whatever was started ends with this process, however that ends.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.Log == nil {
		cfg.Log = os.Stderr
	}
	if path := os.Getenv(EnvKubeconfig); path != "" {
		return connect(ctx, cfg, path)
	}
	bin, err := Binary(ctx, cfg.Log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		c, err := startOnce(ctx, cfg, bin)
		if err == nil {
			return c, nil
		}
		if attempt == startAttempts || !errors.Is(err, errPortTaken) {
			return nil, fmt.Errorf("starting the control plane: %w", err)
		}
	}
}

func startOnce(ctx context.Context, cfg Config, bin string) (*Cluster, error) {
	c, err := newCluster(cfg, bin)
	if err != nil {
		return nil, err
	}
	if err := c.launchAll(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// newCluster prepares the work directory.
func newCluster(cfg Config, bin string) (*Cluster, error) {
	c := &Cluster{dir: cfg.Dir, audit: cfg.Audit, bin: bin}
	if cfg.Dir != "" {
		dir, err := filepath.Abs(cfg.Dir)
		if err != nil {
			return nil, err
		}
		c.dir = dir
		return c, os.MkdirAll(dir, 0o700)
	}
	temporary, err := newWorkDir()
	if err != nil {
		return nil, fmt.Errorf("making a work directory: %w", err)
	}
	c.dir, c.temporary = temporary.path, temporary
	return c, nil
}

// launchAll starts each program as soon as the one it needs accepts connections: earlier they would meet a refusal and
// back off for a second, later time would pass unused.
func (c *Cluster) launchAll(ctx context.Context) error {
	c.launcher = newLauncher()
	if err := c.launchEtcd(); err != nil {
		return err
	}
	if err := c.prepareAPIServer(); err != nil {
		return err
	}
	if err := c.waitAccepting(ctx, "etcd", c.etcdPort); err != nil {
		return err
	}
	if err := c.launchAPIServer(); err != nil {
		return err
	}
	if err := c.waitAccepting(ctx, "the API server", c.apiPort); err != nil {
		return err
	}
	var err error
	args := controllerManagerArgs(c.Kubeconfig())
	if c.controller, err = c.launcher.launch(c.bin, c.dir, "kube-controller-manager", args...); err != nil {
		return err
	}
	if err := c.WaitReady(ctx); err != nil {
		return err
	}
	if err := c.waitForControllers(ctx); err != nil {
		return err
	}
	return c.Node(ctx, DefaultNode)
}

func (c *Cluster) launchEtcd() (err error) {
	if c.etcdPort, err = FreePort(); err != nil {
		return err
	}
	c.etcd, err = c.launcher.launch(c.bin, c.dir, "etcd", etcdArgs(c.dir, c.etcdPort)...)
	return err
}

// prepareAPIServer makes the credentials and the client.
func (c *Cluster) prepareAPIServer() error {
	credentials, err := newCredentials(c.dir)
	if err != nil {
		return err
	}
	if c.apiPort, err = FreePort(); err != nil {
		return err
	}
	c.apiArgs = apiServerArgs(c.dir, c.apiPort, c.etcdPort, credentials)
	if c.audit {
		args, err := auditArgs(c.dir)
		if err != nil {
			return err
		}
		c.apiArgs = append(c.apiArgs, args...)
	}
	c.config = &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", c.apiPort),
		BearerToken:     credentials.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: credentials.ca},
		QPS:             -1, // no limit: the server is ours
	}
	c.adminFile = filepath.Join(c.dir, "admin.kubeconfig")
	if err := writeKubeconfig(c.adminFile, c.config); err != nil {
		return err
	}
	return c.makeClient()
}

func (c *Cluster) launchAPIServer() (err error) {
	c.api, err = c.launcher.launch(c.bin, c.dir, "kube-apiserver", c.apiArgs...)
	return err
}

func (c *Cluster) makeClient() error {
	config := rest.CopyConfig(c.config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	var err error
	if c.http, err = rest.HTTPClientFor(config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if c.client, err = kubernetes.NewForConfigAndClient(config, c.http); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return nil
}

// connect uses an existing cluster.
func connect(ctx context.Context, cfg Config, kubeconfig string) (*Cluster, error) {
	c, err := newCluster(cfg, "")
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Cluster, error) {
		c.Stop()
		return nil, fmt.Errorf("connecting to the cluster of %s=%s: %w", EnvKubeconfig, kubeconfig, err)
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return fail(err)
	}
	c.config.QPS = -1
	if c.adminFile, err = filepath.Abs(kubeconfig); err != nil {
		return fail(err)
	}
	if err := c.makeClient(); err != nil {
		return fail(err)
	}
	if err := c.Node(ctx, DefaultNode); err != nil {
		return fail(err)
	}
	return c, nil
}

// External says whether the cluster was there before.
func (c *Cluster) External() bool { return c.launcher == nil }

// Dir returns the work directory; the logs of the programs are there.
func (c *Cluster) Dir() string { return c.dir }

// Config returns a new configuration for the administrator, without rate limit.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Client returns the administrator's client.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Kubeconfig returns the path of a kubeconfig file for the administrator.
func (c *Cluster) Kubeconfig() string { return c.adminFile }

// Stop ends the programs and removes a temporary work directory. Further calls do nothing. An existing cluster goes on.
func (c *Cluster) Stop() {
	c.stop.Do(func() {
		c.stopped = true
		// The API server writes to etcd while it shuts down, and would wait long for an etcd that is gone.
		terminateAll(c.controller, c.api)
		terminateAll(c.etcd)
		if c.launcher != nil {
			c.launcher.close()
		}
		if c.http != nil {
			c.http.CloseIdleConnections()
		}
		if c.temporary != nil {
			c.temporary.remove()
		}
	})
}

func terminateAll(processes ...*process) {
	var stopping sync.WaitGroup
	for _, p := range processes {
		if p != nil {
			stopping.Go(func() { p.terminate(stopGrace) })
		}
	}
	stopping.Wait()
}

// StopAPIServer kills the API server, as a crash would: connections are cut without notice.
func (c *Cluster) StopAPIServer() error {
	if c.External() {
		return ErrExternal
	}
	c.api.kill()
	return nil
}

// StartAPIServer starts the API server, again with the same port and data, and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if c.External() {
		return ErrExternal
	}
	if c.stopped {
		return errors.New("starting the API server: the cluster was stopped")
	}
	if c.api.running() {
		return nil
	}
	if err := c.launchAPIServer(); err != nil {
		return err
	}
	return c.WaitReady(ctx)
}

// PauseAPIServer makes the API server hang: connections stay open and nothing is answered.
func (c *Cluster) PauseAPIServer() error {
	if c.External() {
		return ErrExternal
	}
	return c.api.signal(syscall.SIGSTOP)
}

// ResumeAPIServer ends the pause.
func (c *Cluster) ResumeAPIServer() error {
	if c.External() {
		return ErrExternal
	}
	return c.api.signal(syscall.SIGCONT)
}

var errPortTaken = errors.New("port taken by another process")

func (c *Cluster) waitAccepting(ctx context.Context, who string, port int) error {
	return c.poll(ctx, "waiting for "+who, func(ctx context.Context) bool {
		connection, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		connection.Close()
		return true
	})
}

// WaitReady waits until the API server says that it is ready.
func (c *Cluster) WaitReady(ctx context.Context) error {
	return c.poll(ctx, "waiting for the API server", func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		answer, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil && string(answer) == "ok"
	})
}

// waitForControllers waits for a work of the controller manager that needs no help: the default ServiceAccount.
func (c *Cluster) waitForControllers(ctx context.Context) error {
	return c.poll(ctx, "waiting for the controller manager", func(ctx context.Context) bool {
		_, err := c.client.CoreV1().ServiceAccounts(corev1.NamespaceDefault).Get(ctx, "default", getOptions)
		return err == nil
	})
}

// poll repeats done until it holds, ctx ends or a program has ended.
func (c *Cluster) poll(ctx context.Context, what string, done func(context.Context) bool) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !done(ctx) {
		if err := c.ended(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
	return nil
}

// ended reports a program that ended unasked.
func (c *Cluster) ended() error {
	for _, p := range []*process{c.etcd, c.api, c.controller} {
		if p == nil || p.running() {
			continue
		}
		tail := p.tail()
		if bytes.Contains(tail, []byte("address already in use")) {
			return fmt.Errorf("%s: %w", p.name, errPortTaken)
		}
		return fmt.Errorf("%s has ended: %s", p.name, tail)
	}
	return nil
}
