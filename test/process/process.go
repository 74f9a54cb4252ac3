// Package process runs other programs so that none survives its parent, however that ends.
package process

import (
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Config says what to run.
type Config struct {
	Path string
	Args []string
	// Env is added to this process's environment.
	Env []string
	Dir string
	// Output takes standard output and error; nil drops them.
	Output io.Writer
	// Thread, if set, is called first on the thread that starts the program, which inherits from it: a network namespace for
	// example. Nothing else runs on that thread.
	Thread func() error
}

// Process is a program that was started.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a program in a process group of its own, so that Ctrl-C reaches only its parent, and has the kernel kill it when
// the parent dies. The parent-death signal follows the thread that forked, so that thread waits with it.
func Start(cfg Config) (*Process, error) {
	cmd := exec.Command(cfg.Path, cfg.Args...)
	cmd.Env = append(cmd.Environ(), cfg.Env...)
	cmd.Dir = cfg.Dir
	cmd.Stdout, cmd.Stderr = cfg.Output, cfg.Output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := cfg.onThread(cmd.Start)
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its output
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cfg.Path, err)
	}
	return p, nil
}

func (c Config) onThread(start func() error) error {
	if c.Thread != nil {
		if err := c.Thread(); err != nil {
			return err
		}
	}
	return start()
}

// PID is the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the program has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ExitCode is what the program returned, once it has ended; -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.exited
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal to the program's process group.
func (p *Process) Signal(s syscall.Signal) {
	select {
	case <-p.exited:
	default:
		_ = syscall.Kill(-p.PID(), s)
	}
}

// Kill ends the program at once and waits.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.exited
}

// Stop asks the program to end, and kills it after the grace.
func (p *Process) Stop(grace time.Duration) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(grace):
		p.Kill()
	}
}
