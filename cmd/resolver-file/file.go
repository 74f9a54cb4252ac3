package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"sigs.k8s.io/yaml"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
)

// resources are what the file says, by locator.
type resources map[string]*resolverv1.WatchResponse

// document is the file.
type document struct {
	Resources map[string][]struct {
		Address   string `json:"address"`
		Readiness string `json:"readiness"`
		Identity  string `json:"identity"`
	} `json:"resources"`
}

var readiness = map[string]resolverv1.Readiness{
	"": resolverv1.Readiness_READINESS_READY, "ready": resolverv1.Readiness_READINESS_READY,
	"not-ready": resolverv1.Readiness_READINESS_NOT_READY, "draining": resolverv1.Readiness_READINESS_DRAINING,
}

// parse refuses the file as a whole if it has a fault anywhere: half of a file is not what its author meant.
func parse(text []byte) (resources, error) {
	// A file is empty while somebody writes it in place; who has no resources says so by {}.
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("the file is empty")
	}
	var d document
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		return nil, err
	}
	all := make(resources, len(d.Resources))
	for locator, endpoints := range d.Resources {
		answer := &resolverv1.WatchResponse{}
		for _, e := range endpoints {
			if _, err := netip.ParseAddr(e.Address); err != nil {
				return nil, fmt.Errorf("resource %q: %q is no IP address", locator, e.Address)
			}
			r, ok := readiness[e.Readiness]
			if !ok {
				return nil, fmt.Errorf("resource %q: readiness %q is none of ready, not-ready, draining", locator, e.Readiness)
			}
			answer.Endpoints = append(answer.Endpoints, &resolverv1.Endpoint{Address: e.Address, Readiness: r, Identity: e.Identity})
		}
		all[locator] = answer
	}
	return all, nil
}

// follow reads the file again and again, and hands on what has changed and makes sense. It looks at the contents, not at times:
// a mounted ConfigMap changes by a link that is turned.
func follow(ctx context.Context, path string, last []byte, every time.Duration, set func(resources), log *slog.Logger) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for said := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		text, err := os.ReadFile(path)
		if err != nil {
			if err.Error() != said {
				log.Warn("the file cannot be read; what it said last counts", "err", err)
			}
			said = err.Error()
			continue
		}
		said = ""
		if bytes.Equal(text, last) {
			continue
		}
		last = text
		all, err := parse(text)
		if err != nil {
			log.Error("the file makes no sense; what it said last counts", "file", path, "err", err)
			continue
		}
		log.Info("the file has changed", "resources", len(all))
		set(all)
	}
}
