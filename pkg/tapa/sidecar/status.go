package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

// Status is what the sidecar says of itself to people.
type Status struct {
	Version string `json:"version"`
	// Pod is namespace/name.
	Pod       string         `json:"pod"`
	NSP       LinkStatus     `json:"nsp"`
	Connector LinkStatus     `json:"connector"`
	Trench    string         `json:"trench"`
	Streams   []StreamStatus `json:"streams"`
}

// LinkStatus is how a connection is.
type LinkStatus struct {
	Address   string `json:"address"`
	Connected bool   `json:"connected"`
	Error     string `json:"error,omitempty"`
}

// StreamStatus is one stream.
type StreamStatus struct {
	Namespace string      `json:"namespace"`
	Trench    string      `json:"trench"`
	Conduit   string      `json:"conduit"`
	Name      string      `json:"name"`
	Status    tapa.Status `json:"status"`
	Owners    []string    `json:"owners"`
	// Error is why the last attempt to open or close failed.
	Error string `json:"error,omitempty"`
}

const statusPath = "/status"

// Status is how it is now.
func (s *Sidecar) Status() Status {
	view, _ := s.reconciler.View()
	nsp := s.assigned.Status()
	out := Status{
		Version: cli.Version, Pod: s.cfg.PodNamespace + "/" + s.cfg.PodName, Trench: view.Trench, Streams: []StreamStatus{},
		NSP:       LinkStatus{Address: s.cfg.NSPAddress, Connected: nsp.Live, Error: text(nsp.Err)},
		Connector: LinkStatus{Address: s.cfg.Connector, Connected: view.Connected, Error: text(view.Cause)},
	}
	for _, r := range view.Rows {
		out.Streams = append(out.Streams, StreamStatus{
			Namespace: r.Stream.Namespace, Trench: r.Stream.Trench, Conduit: r.Stream.Conduit, Name: r.Stream.Name,
			Status: r.Status, Owners: r.Owners.Names(), Error: text(r.Err),
		})
	}
	return out
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (s *Sidecar) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+statusPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Status()) // the caller is gone
	})
	mux.Handle("GET /metrics", s.metrics.handler())
	return mux
}

// AskStatus asks a running sidecar at its admin socket.
func AskStatus(ctx context.Context, socket string, timeout time.Duration) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sidecar"+statusPath, http.NoBody)
	if err != nil {
		return Status{}, fmt.Errorf("asking for the status: %w", err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return Status{}, fmt.Errorf("no answer at %s, is the sidecar running in this container? %w", socket, err)
	}
	defer resp.Body.Close()
	var s Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return Status{}, fmt.Errorf("reading the answer (%s): %w", resp.Status, err)
	}
	return s, nil
}
