package iface

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

// version of the file's format.
const version = 1

// state is what outlives the process: what it has to undo or to take up again.
type state struct {
	Version int `json:"version"`
	// Streams are those that are open, or may be.
	Streams []savedStream `json:"streams"`
	// Trenches are the last known configurations.
	Trenches map[string]*settings `json:"trenches"`
	// Made are the VIPs that this connector has put on the link, or was about to.
	Made []netip.Prefix `json:"made"`
}

// savedStream is one stream and what it is registered with; no identifier is 0.
type savedStream struct {
	Stream     stream.Key     `json:"stream"`
	Identifier uint32         `json:"identifier"`
	Addresses  []netip.Prefix `json:"addresses"`
}

// settings are what the configuration of a trench says, as far as it matters here. They are not changed any more.
type settings struct {
	VIPs []netip.Prefix `json:"vips"`
	// Limits are the streams that are configured, as conduit/stream, and their max-targets.
	Limits map[string]uint32 `json:"limits"`
}

// limit is the max-targets of a stream; 0 where it is not configured.
func (s *settings) limit(k stream.Key) uint32 { return s.Limits[k.Conduit+"/"+k.Name] }

// readState reads the file. A damaged one is moved aside, and damaged says so.
func readState(path string) (s state, damaged, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return s, nil, fmt.Errorf("making the directory of the state file: %w", err)
	}
	_, damaged, err = tapa.ReadFile(path, func(data []byte) error {
		var read state
		if err := json.Unmarshal(data, &read); err != nil {
			return err
		}
		if read.Version != version {
			return fmt.Errorf("its version is %d, not %d", read.Version, version)
		}
		s = read
		return nil
	})
	return s, damaged, err
}

func (s state) write(path string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encoding the state: %w", err)
	}
	if err := tapa.WriteFile(path, data); err != nil {
		return fmt.Errorf("writing the state file: %w", err)
	}
	return nil
}
