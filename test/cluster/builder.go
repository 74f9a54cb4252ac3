package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/term"
)

// build compiles the module in source into binary and tells log how far it is.
func build(ctx context.Context, source, binary string, log io.Writer) error {
	flags, err := linkFlags(ctx, source)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-ldflags", flags, "-o", binary, ".")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	// A terminated go command ends its compilers and removes its work directory; a killed one does neither.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting go build: %w", err)
	}
	progress := startProgress(log)
	complaints := progress.follow(stderr)
	err = cmd.Wait()
	progress.stop()
	if err != nil {
		return errors.Join(fmt.Errorf("go build in %s: %w: %s", source, err, complaints), ctx.Err())
	}
	return nil
}

// linkFlags stamps the binary with the version of Kubernetes that it is built from.
func linkFlags(ctx context.Context, source string) (string, error) {
	version, err := goOutput(ctx, source, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return "", fmt.Errorf("reading the Kubernetes version: %w", err)
	}
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) != 3 {
		return "", fmt.Errorf("reading the Kubernetes version: %q is none", version)
	}
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags, "-X="+pkg+".gitVersion="+version, "-X="+pkg+".gitMajor="+parts[0],
			"-X="+pkg+".gitMinor="+parts[1], "-X="+pkg+".gitTreeState=clean")
	}
	return strings.Join(flags, " "), nil
}

// progress reports a build: on a terminal by rewriting one line each second, elsewhere by a line each 15 seconds.
type progress struct {
	log      io.Writer
	started  time.Time
	terminal bool
	compiled atomic.Int64
	quit     chan struct{}
	done     chan struct{}
}

func startProgress(log io.Writer) *progress {
	file, isFile := log.(*os.File)
	p := &progress{
		log:      log,
		started:  time.Now(),
		terminal: isFile && term.IsTerminal(int(file.Fd())),
		quit:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	fmt.Fprintln(log, "building the Kubernetes control plane: minutes the first time, then it is kept")
	go p.run()
	return p
}

func (p *progress) run() {
	defer close(p.done)
	interval := 15 * time.Second
	if p.terminal {
		interval = time.Second
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.print("building")
		case <-p.quit:
			p.print("build ended")
			if p.terminal {
				fmt.Fprintln(p.log)
			}
			return
		}
	}
}

func (p *progress) print(what string) {
	start, end := "", "\n"
	if p.terminal {
		start, end = "\r\x1b[K", ""
	}
	elapsed := time.Since(p.started).Round(time.Second)
	fmt.Fprintf(p.log, "%scontrol plane: %s, %s, %d packages compiled%s", start, what, elapsed, p.compiled.Load(), end)
}

// follow counts the package names that go build -v prints, until it ends, and returns the last lines that are none.
func (p *progress) follow(r io.Reader) string {
	const keep = 40
	var complaints []string
	for lines := bufio.NewScanner(r); lines.Scan(); {
		line := lines.Text()
		if isImportPath(line) {
			p.compiled.Add(1)
			continue
		}
		complaints = append(complaints, line)
		if len(complaints) > keep {
			complaints = complaints[1:]
		}
	}
	return strings.Join(complaints, "\n")
}

func isImportPath(line string) bool {
	return line != "" && !strings.ContainsAny(line, " :#")
}

func (p *progress) stop() {
	close(p.quit)
	<-p.done
}
