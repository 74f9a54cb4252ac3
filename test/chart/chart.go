package chart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nordix/meridio-nsp/test/cluster"
)

// Names of the chart's objects.
const (
	Release        = "meridio-nsp"   // the release that Render and Install make
	ServiceAccount = "nsp-namespace" // of the namespace process
	Service        = "nsp-service"
	StatefulSet    = "nsp"
	// ControllerAccount and ControllerDeployment are those of the controller, where it is enabled.
	ControllerAccount    = "nsp-controller"
	ControllerDeployment = "nsp-controller"
)

const module = "github.com/nordix/meridio-nsp"

// Values are those of values.yaml that differ.
type Values map[string]any

// Render returns the manifests, YAML documents, of a release in the namespace. The first call may have to build helm, which
// takes minutes; make shows what it does on standard error.
func Render(ctx context.Context, namespace string, values Values) ([]byte, error) {
	return run(ctx, namespace, values, "template")
}

// Notes returns what helm tells the user after the installation. Nothing is installed.
func Notes(ctx context.Context, namespace string, values Values) (string, error) {
	out, err := run(ctx, namespace, values, "install", "--dry-run=client")
	if err != nil {
		return "", err
	}
	_, notes, _ := strings.Cut(string(out), "NOTES:\n")
	return notes, nil
}

// RenderCopy is Render for a copy of the chart that has more files, or other ones. Values are not held to the schema.
func RenderCopy(ctx context.Context, dir, namespace string, values Values) ([]byte, error) {
	return runIn(ctx, dir, namespace, values, "template", "--skip-schema-validation")
}

// Dir is where the chart is.
func Dir(ctx context.Context) (string, error) {
	root, err := rootDir(ctx)
	return filepath.Join(root, "deployments", "helm", "meridio-nsp"), err
}

// Helm returns the path of the pinned helm, which the first call may have to build.
func Helm(ctx context.Context) (string, error) {
	root, err := rootDir(ctx)
	if err != nil {
		return "", err
	}
	return helmTool(ctx, root)
}

// Install renders the chart and applies it to the namespace, which must exist. No pod comes of it where nobody plays the
// StatefulSet controller; processes that the caller starts can run as its ServiceAccount.
func Install(ctx context.Context, c *cluster.Cluster, namespace string, values Values) error {
	manifests, err := Render(ctx, namespace, values)
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, manifests, false); err != nil {
		return fmt.Errorf("installing the chart into namespace %s: %w", namespace, err)
	}
	return nil
}

// run calls a subcommand of helm that takes a release name and a chart.
func run(ctx context.Context, namespace string, values Values, command string, flags ...string) ([]byte, error) {
	dir, err := Dir(ctx)
	if err != nil {
		return nil, err
	}
	return runIn(ctx, dir, namespace, values, command, flags...)
}

func runIn(ctx context.Context, dir, namespace string, values Values, command string, flags ...string) ([]byte, error) {
	helm, err := Helm(ctx)
	if err != nil {
		return nil, err
	}
	input, err := yaml.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("encoding values: %w", err)
	}
	args := []string{command, Release, dir, "--namespace=" + namespace, "--values=-"}
	cmd := exec.CommandContext(ctx, helm, append(args, flags...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("helm %s: %w: %s", command, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// helmTool returns the path of the pinned helm. make knows whether it is there and how to build it.
func helmTool(ctx context.Context, root string) (string, error) {
	helm := filepath.Join(root, "bin", "tools", "helm")
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", helm)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "MAKEFLAGS=") // not those of a make that runs us
	cmd.Stdout, cmd.Stderr = &stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building helm: %w: %s", err, bytes.TrimSpace(stdout.Bytes()))
	}
	return helm, nil
}

// rootDir finds the repository by this file, or by asking go where binaries are built with -trimpath.
func rootDir(ctx context.Context) (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		root := filepath.Dir(filepath.Dir(filepath.Dir(file)))
		if _, err := os.Stat(filepath.Join(root, "Makefile")); err == nil {
			return root, nil
		}
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	root := strings.TrimSpace(string(out))
	if err == nil && root == "" {
		err = errors.New("run this in the repository")
	}
	if err != nil {
		return "", fmt.Errorf("finding the chart: %w", err)
	}
	return root, nil
}
