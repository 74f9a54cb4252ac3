package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

var getOptions = metav1.GetOptions{}

// ServiceAccount makes the ServiceAccount unless it exists.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating service account %s/%s: %w", namespace, name, err)
	}
	return nil
}

// ServiceAccountConfig returns a configuration that acts as the ServiceAccount, with a real token valid for an hour. The
// account is made if need be; its permissions are what RBAC objects give it.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	if err := c.ServiceAccount(ctx, namespace, name); err != nil {
		return nil, err
	}
	token, err := c.token(ctx, namespace, name, authenticationv1.TokenRequestSpec{})
	if err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token
	return config, nil
}

// ServiceAccountKubeconfig writes what ServiceAccountConfig returns into a kubeconfig file and returns its path.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	config, err := c.ServiceAccountConfig(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.dir, fmt.Sprintf("%s.%s.kubeconfig", namespace, name))
	return path, writeKubeconfig(path, config)
}

// PodToken returns a token of the ServiceAccount bound to the pod, as a projected volume would hold it: valid for an hour
// and until the pod is deleted. The account must be the pod's own. The API server may accept it from its cache for 10 s
// more.
func (c *Cluster) PodToken(ctx context.Context, pod *corev1.Pod, serviceAccount, audience string) (string, error) {
	return c.token(ctx, pod.Namespace, serviceAccount, authenticationv1.TokenRequestSpec{
		Audiences:      []string{audience},
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	})
}

func (c *Cluster) token(ctx context.Context, namespace, account string, spec authenticationv1.TokenRequestSpec) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: spec}
	answer, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a token of service account %s/%s: %w", namespace, account, err)
	}
	return answer.Status.Token, nil
}

// Kubectl runs kubectl as administrator and returns what it prints. An error holds what it complained about.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return c.kubectl(ctx, nil, args...)
}

// Apply applies the manifest, YAML documents of any kind, server-side. With dryRun the server checks and changes nothing.
func (c *Cluster) Apply(ctx context.Context, manifestYAML []byte, dryRun bool) error {
	args := []string{"apply", "--server-side", "--force-conflicts", "--field-manager=nsp-test", "-f", "-"}
	if dryRun {
		args = append(args, "--dry-run=server")
	}
	_, err := c.kubectl(ctx, bytes.NewReader(manifestYAML), args...)
	return err
}

func (c *Cluster) kubectl(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	path, err := c.KubectlPath(ctx)
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	flags := []string{"--kubeconfig=" + c.Kubeconfig(), "--cache-dir=" + filepath.Join(c.dir, "kubectl-cache")}
	cmd := exec.CommandContext(ctx, path, append(flags, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// KubectlPath returns the path of a kubectl. It spares users of an existing cluster the build where they have one.
func (c *Cluster) KubectlPath(ctx context.Context) (string, error) {
	if c.bin != "" {
		return filepath.Join(c.bin, "kubectl"), nil
	}
	if path, err := exec.LookPath("kubectl"); err == nil {
		return path, nil
	}
	dir, err := Binary(ctx, os.Stderr)
	return filepath.Join(dir, "kubectl"), err
}

// Compact drops all history from etcd: a list or watch that continues from an older resource version and is not answered
// from the API server's own cache (after StopAPIServer and StartAPIServer, say) fails with 410 Gone.
func (c *Cluster) Compact(ctx context.Context) error {
	if c.External() {
		return ErrExternal
	}
	namespaces, err := c.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("reading the current revision: %w", err)
	}
	body := fmt.Sprintf(`{"revision": %q, "physical": true}`, namespaces.ResourceVersion)
	url := fmt.Sprintf("http://127.0.0.1:%d/v3/kv/compaction", c.etcdPort)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("compacting etcd: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		return fmt.Errorf("compacting etcd: %s: %s", answer.Status, text)
	}
	return nil
}
