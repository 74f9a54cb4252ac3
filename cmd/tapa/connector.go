package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/tapa"
	"github.com/nordix/meridio-nsp/pkg/tapa/ambassador"
	"github.com/nordix/meridio-nsp/pkg/tapa/iface"
	"github.com/nordix/meridio-nsp/pkg/tapa/sidecar"
)

// The connectors.
const (
	byAmbassador = "ambassador"
	byInterface  = "interface"
)

var connectors = []string{byAmbassador, byInterface}

// connector is what brings streams up and down. Its fields are flags.
type connector struct {
	name             string
	ambassadorSocket string
	gateways         []string
	iface            iface.Config
}

func addConnector(cmd *cobra.Command) *connector {
	c := &connector{}
	f := cmd.Flags()
	f.StringVar(&c.name, "connector", byAmbassador, "what opens streams: ambassador, a TAPA of Meridio 1.x, or interface, the sidecar itself, without NSM")
	f.StringVar(&c.ambassadorSocket, "ambassador-socket", defaultAmbassadorSocket, "ambassador: unix socket of the TAPA, its MERIDIO_SOCKET")
	f.StringVar(&c.iface.Interface, "interface", "", "interface: the pod's interface to the secondary network, as net1; its addresses are those of the target")
	f.StringSliceVar(&c.gateways, "gateway", nil, "interface: address that what is sent from a VIP goes to, on that network; several share the load, each family needs its own")
	f.StringVar(&c.iface.VIPLink, "vip-link", "lo", "interface: link that bears the VIPs while streams are open")
	f.StringVar(&c.iface.TrenchServer, "trench-server", "", "interface: address of the NSP of a trench, which tells the VIPs; "+
		"TRENCH stands for its name; empty is nsp-service-TRENCH.NAMESPACE:7778, and --server with --external-target")
	f.DurationVar(&c.iface.EntryTimeout, "entry-timeout", time.Minute, "interface: --entry-timeout of the NSP; registrations are renewed three times as often")
	f.IntVar(&c.iface.Table, "route-table", 110, "interface: routing table of what is sent from VIPs")
	f.IntVar(&c.iface.Priority, "rule-priority", 110, "interface: priority of the rules that lead there")
	cli.Complete(cmd, "connector", connectors...)
	return c
}

// String says to people what it is, and where.
func (c *connector) String() string {
	if c.name == byInterface {
		return c.name + " " + c.iface.Interface
	}
	return c.name + " " + c.ambassadorSocket
}

// validate comes after that of the sidecar's configuration, parts of which it takes over.
func (c *connector) validate(cfg *sidecar.Config) error {
	switch c.name {
	case byAmbassador:
		return c.checkAmbassador(cfg.TapSocket)
	case byInterface:
		return c.checkInterface(cfg)
	}
	return fmt.Errorf("--connector is %q: choose one of %s", c.name, strings.Join(connectors, ", "))
}

func (c *connector) checkAmbassador(tapSocket string) error {
	switch {
	case c.ambassadorSocket == "":
		return errors.New("--ambassador-socket is empty: name the socket of the TAPA")
	case c.ambassadorSocket == tapSocket:
		return fmt.Errorf("--tap-socket and --ambassador-socket are both %s: have the TAPA serve its socket at another path", tapSocket)
	case c.iface.Interface != "" || len(c.gateways) > 0:
		return errors.New("--interface and --gateway are for --connector=interface: choose that, or drop them")
	}
	return nil
}

func (c *connector) checkInterface(cfg *sidecar.Config) error {
	for _, g := range c.gateways {
		a, err := netip.ParseAddr(g)
		if err != nil {
			return fmt.Errorf("--gateway is %q: write the address of a router", g)
		}
		if !slices.Contains(c.iface.Gateways, a) {
			c.iface.Gateways = append(c.iface.Gateways, a)
		}
	}
	c.iface.Namespace, c.iface.Server = cfg.NSPNamespace, cfg.NSPAddress
	if cfg.ExternalTarget != "" && c.iface.TrenchServer == "" {
		c.iface.TrenchServer = cfg.NSPAddress // which tells it to machines outside of the cluster
	}
	c.iface.StateFile = filepath.Join(filepath.Dir(cfg.StateFile), "interface.json")
	return c.iface.Validate()
}

// open makes the connector and lets it run until stop is called, which undoes what it has done for the pod.
func (c *connector) open(ctx context.Context, cfg *sidecar.Config, log *slog.Logger) (opened tapa.Connector, stop func() error, err error) {
	if c.name == byAmbassador {
		a, err := ambassador.New(ambassador.Config{Socket: c.ambassadorSocket, Namespace: cfg.NSPNamespace, Log: log})
		if err != nil {
			return nil, nil, err
		}
		return a, func() error { a.Stop(); return nil }, nil
	}
	c.iface.Credentials, c.iface.PerRPC, c.iface.Log = cfg.Credentials, cfg.PerRPC, log
	i, err := iface.New(c.iface)
	if err != nil {
		return nil, nil, err
	}
	// It outlasts the sidecar, which still has streams closed when it is told to end.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- i.Run(running) }()
	return i, func() error { cancel(); return <-ended }, nil
}
