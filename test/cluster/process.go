package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// launcher starts children from one OS thread that lives as long as it does: the kernel's parent-death signal follows
// the thread that forked, and an ordinary goroutine's thread may end at any time.
type launcher struct {
	starts chan start
}

type start struct {
	cmd    *exec.Cmd
	result chan error
}

func newLauncher() *launcher {
	l := &launcher{starts: make(chan start)}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and so do the children
		for s := range l.starts {
			s.result <- s.cmd.Start()
		}
	}()
	return l
}

// close ends the thread; what it started and still runs is killed.
func (l *launcher) close() { close(l.starts) }

// process is one running program.
type process struct {
	name   string
	log    string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the program ended
}

// launch starts the program called name from the directory bin. Its output is appended to dir/name.log.
func (l *launcher) launch(bin, dir, name string, args ...string) (*process, error) {
	p := &process{
		name:   name,
		log:    filepath.Join(dir, name+".log"),
		cmd:    exec.Command(filepath.Join(bin, name), args...),
		exited: make(chan struct{}),
	}
	output, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = output, output
	p.cmd.SysProcAttr = childAttributes()
	s := start{cmd: p.cmd, result: make(chan error, 1)}
	l.starts <- s
	if err := <-s.result; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is seen in its log
		close(p.exited)
	}()
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal is safe after the end of the process: os.Process knows that it has been waited for.
func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signalling %s: %w", p.name, err)
	}
	return nil
}

// terminate asks politely and kills after grace. It returns when the process has ended.
func (p *process) terminate(grace time.Duration) {
	_ = p.signal(syscall.SIGCONT)
	_ = p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(grace):
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL)
	<-p.exited
}

// tail returns the end of the log, for error messages.
func (p *process) tail() []byte {
	const size = 3000
	content, err := os.ReadFile(p.log)
	if err != nil {
		return nil
	}
	return bytes.TrimSpace(content[max(0, len(content)-size):])
}
