package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	module  = "github.com/nordix/meridio-nsp"
	program = "controlplane"
)

// programs are the names under which the control plane is called.
var programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"}

// Binary returns the directory that holds etcd, kube-apiserver, kube-controller-manager and kubectl: KUBEBUILDER_ASSETS
// where that has all of them, else a build of test/controlplane, kept in the user's cache directory until its sources or
// the Go version change. The first build takes minutes; its progress goes to log.
func Binary(ctx context.Context, log io.Writer) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		lacking := missing(dir)
		if len(lacking) == 0 {
			return dir, nil
		}
		// The assets of envtest have no controller manager, without which no EndpointSlice would ever appear.
		fmt.Fprintf(log, "KUBEBUILDER_ASSETS=%s lacks %s: using an own build\n", dir, strings.Join(lacking, ", "))
	}
	source, err := sourceDir(ctx)
	if err != nil {
		return "", err
	}
	dir, err := cacheDir(source)
	if err != nil {
		return "", err
	}
	if len(missing(dir)) == 0 {
		return dir, nil
	}
	if err := buildOnce(ctx, source, dir, log); err != nil {
		return "", fmt.Errorf("building the control plane: %w", err)
	}
	return dir, nil
}

// missing lists the programs that dir does not have.
func missing(dir string) []string {
	var names []string
	for _, name := range programs {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			names = append(names, name)
		}
	}
	return names
}

// sourceDir finds test/controlplane beside this file, or by asking go where binaries are built with -trimpath.
func sourceDir(ctx context.Context) (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dir := filepath.Join(filepath.Dir(filepath.Dir(file)), program)
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	root, err := goOutput(ctx, "", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", fmt.Errorf("finding the sources of the control plane: %w", err)
	}
	return filepath.Join(root, "test", program), nil
}

// cacheDir names the directory of the build of these sources with this Go.
func cacheDir(source string) (string, error) {
	files, err := filepath.Glob(filepath.Join(source, "*"))
	if err != nil {
		return "", err
	}
	slices.Sort(files)
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, file := range files {
		if ext := filepath.Ext(file); ext != ".go" && ext != ".mod" && ext != ".sum" {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("hashing the sources of the control plane: %w", err)
		}
		fmt.Fprintln(hash, filepath.Base(file), len(content))
		hash.Write(content)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory: %w", err)
	}
	return filepath.Join(cache, "meridio-nsp", program, hex.EncodeToString(hash.Sum(nil))[:16]), nil
}

// buildOnce builds into dir unless another process does so first.
func buildOnce(ctx context.Context, source, dir string, log io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "lock"), log)
	if err != nil {
		return err
	}
	defer unlock()
	if len(missing(dir)) == 0 {
		return nil
	}
	binary := filepath.Join(dir, program)
	partial := fmt.Sprintf("%s.%d", binary, os.Getpid())
	defer os.Remove(partial)
	if err := build(ctx, source, partial, log); err != nil {
		return err
	}
	if err := os.Rename(partial, binary); err != nil {
		return err
	}
	return link(dir)
}

// link gives the binary its names.
func link(dir string) error {
	for _, name := range programs {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// lockFile takes the exclusive lock on path, waiting as long as ctx lives. The kernel drops it with the process.
func lockFile(ctx context.Context, path string, log io.Writer) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	for told := false; ; told = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !told {
			fmt.Fprintln(log, "another process is building the control plane: waiting for it")
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			file.Close()
			return nil, ctx.Err()
		}
	}
}

// goOutput runs the go command in dir and returns what it prints.
func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
