package cluster

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// auditPolicy has the requests of ServiceAccounts, without their contents: watches when they begin, all others when they are
// done.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [system:serviceaccounts]
- level: None
`

// Request is what somebody asked of the API server about objects.
type Request struct {
	Verb, Group, Resource string // with subresource, as services/status
	Namespace, Name       string // the name may come from a field selector
	Allowed               bool
}

func auditArgs(dir string) ([]string, error) {
	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, fmt.Errorf("writing the audit policy: %w", err)
	}
	return []string{
		"--audit-policy-file=" + policy,
		"--audit-log-path=" + auditLog(dir),
		"--audit-log-format=json",
		"--audit-log-mode=blocking", // what was answered is in the log
	}, nil
}

func auditLog(dir string) string { return filepath.Join(dir, "audit.log") }

// Requests returns what the ServiceAccount has asked so far, in order. The cluster must have been started with Audit.
func (c *Cluster) Requests(namespace, account string) ([]Request, error) {
	file, err := os.Open(auditLog(c.dir))
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	defer file.Close()
	user := "system:serviceaccount:" + namespace + ":" + account
	var requests []Request
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return requests, nil // the last line is being written
		}
		if e.User.Username == user && e.Object != nil && e.Object.Resource != "" {
			requests = append(requests, e.request())
		}
	}
	return requests, lines.Err()
}

// auditEvent is what is read of an event of audit.k8s.io/v1.
type auditEvent struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	Object *struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Group       string `json:"apiGroup"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	Annotations map[string]string `json:"annotations"`
}

func (e *auditEvent) request() Request {
	resource := e.Object.Resource
	if e.Object.Subresource != "" {
		resource += "/" + e.Object.Subresource
	}
	return Request{
		Verb: e.Verb, Group: e.Object.Group, Resource: resource, Namespace: e.Object.Namespace, Name: e.Object.Name,
		Allowed: e.Annotations["authorization.k8s.io/decision"] == "allow",
	}
}
