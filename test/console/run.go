package console

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Config says where a page is followed. All fields but Env are required.
type Config struct {
	// Root is the directory that commands run in, as the reader's clone; it is not written to.
	Root string
	// Dir is for what the page has written: files are there, and the reader's home.
	Dir string
	// Programs are those that commands may name beside what the system has: path by name.
	Programs map[string]string
	// Env is added to the environment.
	Env []string
	// Timeout is for one command.
	Timeout time.Duration
}

// Run follows a page and stops at the first step that does not do what the page says.
func Run(ctx context.Context, cfg Config, page string) error {
	steps, err := Parse(page)
	if err != nil {
		return err
	}
	if err := cfg.prepare(); err != nil {
		return fmt.Errorf("preparing: %w", err)
	}
	for _, s := range steps {
		if err := cfg.do(ctx, s); err != nil {
			return fmt.Errorf("line %d: %w", s.Line, err)
		}
	}
	return nil
}

// prepare makes the directory look like the root, so that relative paths work for both.
func (c *Config) prepare() error {
	entries, err := os.ReadDir(c.Root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := link(filepath.Join(c.Root, e.Name()), filepath.Join(c.Dir, e.Name())); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(c.programs(), 0o700); err != nil {
		return err
	}
	for name, path := range c.Programs {
		if err := link(path, filepath.Join(c.programs(), name)); err != nil {
			return err
		}
	}
	return os.MkdirAll(c.home(), 0o700)
}

func (c *Config) programs() string { return filepath.Join(c.Dir, ".programs") }
func (c *Config) home() string     { return filepath.Join(c.Dir, ".home") }

func link(old, new string) error {
	if err := os.Symlink(old, new); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

func (c *Config) do(ctx context.Context, s Step) error {
	if s.File != "" {
		return os.WriteFile(filepath.Join(c.Dir, s.File), []byte(s.Content), 0o600)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("not done within %s", c.Timeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", s.Command)
	cmd.Dir, cmd.WaitDelay = c.Dir, time.Second
	cmd.Env = append(os.Environ(), "HOME="+c.home(), "PATH="+c.programs()+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, c.Env...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("$ %s: %w\n%s", s.Command, err, output.Bytes())
	}
	if missing, ok := shows(output.String(), s.Output); !ok {
		return fmt.Errorf("$ %s\ndoes not print %q, but\n%s", s.Command, strings.TrimSpace(missing), output.Bytes())
	}
	return nil
}
