package config

import (
	"strings"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// MapName is the name of the ConfigMap of a trench.
func MapName(trench string) string { return "meridio-configuration-" + trench }

// TrenchOf is the trench that the name of a ConfigMap says; ok is false where it says none.
func TrenchOf(mapName string) (trench string, ok bool) {
	trench, ok = strings.CutPrefix(mapName, MapName(""))
	if !ok || trench == "" {
		return "", false
	}
	return trench, true
}

// Config is what the configuration of one trench says. It is immutable.
type Config struct {
	Trench     Trench
	Conduits   []Conduit
	Streams    []Stream
	Flows      []Flow
	Vips       []Vip
	Attractors []Attractor
	Gateways   []Gateway
	// Unread lists the keys that were never read well, in the order of Keys; their values mean nothing.
	Unread []string
}

// Trench is the value of the key trench.
type Trench struct {
	Name string `yaml:"name"`
}

// Conduit is one item of the key conduits.
type Conduit struct {
	Name                string    `yaml:"name"`
	Trench              string    `yaml:"trench"`
	DestinationPortNats []PortNat `yaml:"destination-port-nats,omitempty"`
}

// PortNat translates a destination port for the named VIPs.
type PortNat struct {
	Port       uint16   `yaml:"port"`
	TargetPort uint16   `yaml:"target-port"`
	Vips       []string `yaml:"vips"`
	Protocol   string   `yaml:"protocol"`
}

// Stream is one item of the key streams. MaxTargets 0 means the default.
type Stream struct {
	Name       string `yaml:"name"`
	Conduit    string `yaml:"conduit"`
	MaxTargets uint32 `yaml:"max-targets"`
}

// Flow is one item of the key flows.
type Flow struct {
	Name                  string   `yaml:"name"`
	SourceSubnets         []string `yaml:"source-subnets"`
	DestinationPortRanges []string `yaml:"destination-port-ranges"`
	SourcePortRanges      []string `yaml:"source-port-ranges"`
	Protocols             []string `yaml:"protocols"`
	Vips                  []string `yaml:"vips"`
	Priority              int32    `yaml:"priority"`
	Stream                string   `yaml:"stream"`
	ByteMatches           []string `yaml:"byte-matches,omitempty"`
}

// Vip is one item of the key vips.
type Vip struct {
	Name    string `yaml:"name"`
	Address string `yaml:"address"`
	Trench  string `yaml:"trench"`
}

// Attractor is one item of the key attractors.
type Attractor struct {
	Name     string   `yaml:"name"`
	Vips     []string `yaml:"vips"`
	Gateways []string `yaml:"gateways"`
	Trench   string   `yaml:"trench"`
}

// Gateway is one item of the key gateways. HoldTime is in seconds, MinTx and MinRx in milliseconds.
type Gateway struct {
	Name       string   `yaml:"name"`
	Address    string   `yaml:"address"`
	RemoteASN  uint32   `yaml:"remote-asn,omitempty"`
	LocalASN   uint32   `yaml:"local-asn,omitempty"`
	RemotePort uint16   `yaml:"remote-port,omitempty"`
	LocalPort  uint16   `yaml:"local-port,omitempty"`
	IPFamily   string   `yaml:"ip-family"`
	BFD        bool     `yaml:"bfd"`
	Protocol   string   `yaml:"protocol"`
	HoldTime   uint     `yaml:"hold-time,omitempty"`
	MinTx      uint     `yaml:"min-tx,omitempty"`
	MinRx      uint     `yaml:"min-rx,omitempty"`
	Multiplier uint     `yaml:"multiplier,omitempty"`
	Trench     string   `yaml:"trench"`
	BGPAuth    *BGPAuth `yaml:"bgp-auth,omitempty"`
}

// BGPAuth names the key of a BGP session and the secret that holds it.
type BGPAuth struct {
	Key    string `yaml:"key"`
	Source string `yaml:"source"`
}

// NamesAnother tells whether what is in the ConfigMap of this name says that it is another trench's.
func (c *Config) NamesAnother(mapName string) bool {
	trench, ok := TrenchOf(mapName)
	return ok && c.Trench.Name != "" && c.Trench.Name != trench
}

// MaxTargets has an entry for every stream that sets max-targets, with the given namespace and trench in its key.
func (c *Config) MaxTargets(namespace, trench string) map[stream.Key]uint32 {
	most := make(map[stream.Key]uint32)
	for _, s := range c.Streams {
		if s.MaxTargets > 0 {
			most[stream.Key{Namespace: namespace, Trench: trench, Conduit: s.Conduit, Name: s.Name}] = s.MaxTargets
		}
	}
	return most
}

// FlowsOf are the flows of every stream of the trench, those without any included; namespace is the NSP's own. It is nil where the
// key flows was never read well.
func (c *Config) FlowsOf(namespace, trench string) map[stream.Key][]Flow {
	if !c.IsRead(KeyFlows) {
		return nil
	}
	flows := make(map[stream.Key][]Flow)
	for _, s := range c.Streams {
		k := stream.Key{Namespace: namespace, Trench: trench, Conduit: s.Conduit, Name: s.Name}
		flows[k] = nil
		for _, f := range c.Flows {
			if f.Stream == s.Name {
				flows[k] = append(flows[k], f)
			}
		}
	}
	return flows
}
