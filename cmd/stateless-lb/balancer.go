package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/lb"
	"github.com/nordix/meridio-nsp/pkg/lb/nft"
)

const defaultHealthSocket = "/tmp/health.sock"

// settings are what flags say beside the configuration of the Balancer.
type settings struct {
	lb.Config
	healthSocket, healthAddress, metricsAddress string
	level                                       string
}

// beBalancer gives a command the flags and the doings of the load balancer.
func beBalancer(cmd *cobra.Command) {
	var s settings
	var transport *cli.ClientTransport
	f := cmd.Flags()
	f.StringVar(&s.Trench, "trench", "", "name of the trench (required)")
	f.StringVar(&s.Conduit, "conduit", "", "name of the conduit (required)")
	f.StringVar(&s.Namespace, "namespace", "", "namespace of the trench and its NSP")
	f.StringVar(&s.NSP, "nsp-address", "", "address of the trench's NSP, for the configuration; empty is nsp-service-TRENCH.NAMESPACE:7778")
	f.StringVar(&s.Feed, "feed-address", "", "address of the namespace-wide NSP, for the targets; empty is nsp-service.NAMESPACE:7778; "+
		"none asks the trench's NSP, as a load balancer of Meridio 1.x does")
	f.DurationVar(&s.AuditEvery, "audit-interval", lb.DefaultAuditEvery, "how often the kernel is compared with what is desired, whatever happens")
	f.BoolVar(&s.RemoveAtEnd, "remove-at-end", false, "take all out of the kernel when told to end; without it the kernel goes on forwarding")
	f.DurationVar(&s.Plane.LearnDuration, "drain-timeout", nft.DefaultLearnDuration,
		"how long a silent connection is remembered that began while targets drained")
	f.StringVar(&s.healthSocket, "health-socket", defaultHealthSocket, "unix socket that answers health probes; empty for none")
	f.StringVar(&s.healthAddress, "health-address", "", "address that answers health probes of the kubelet, as :7780; empty for none")
	f.StringVar(&s.metricsAddress, "metrics-address", "", "address of the Prometheus metrics, as :2223; empty for none")
	f.StringVar(&s.level, "log-level", "info", "debug, info, warn or error; the signal USR2 makes it debug, USR1 what it was")
	cli.Complete(cmd, "log-level", "debug", "info", "warn", "error")
	addPlane(cmd, &s.Plane)
	transport = cli.AddClientTransport(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(s.complete(), transport.Validate()); err != nil {
			return cli.Usage(err)
		}
		return s.run(cmd, transport)
	}
}

// complete fills in addresses that follow from names.
func (s *settings) complete() error {
	if s.Trench == "" || s.Conduit == "" {
		return errors.New("--trench and --conduit are required")
	}
	dot := ""
	if s.Namespace != "" {
		dot = "." + s.Namespace
	}
	if s.NSP == "" {
		s.NSP = "nsp-service-" + s.Trench + dot + ":7778"
	}
	switch s.Feed {
	case "":
		s.Feed = "nsp-service" + dot + ":7778"
	case "none":
		s.Feed = ""
	}
	return nil
}

func (s *settings) run(cmd *cobra.Command, transport *cli.ClientTransport) error {
	log, levels, err := cli.NewLogger(cmd.ErrOrStderr(), s.level)
	if err != nil {
		return err
	}
	following, stop := context.WithCancel(cmd.Context())
	followed := levels.Follow(following, log)
	defer func() { stop(); <-followed }()
	var end func()
	if s.Credentials, s.PerRPC, end, err = transport.Open(cmd.Context(), log); err != nil {
		return err
	}
	defer end()
	s.Log = log
	balancer, err := lb.New(s.Config)
	if err != nil {
		return err
	}
	return s.serve(cmd.Context(), balancer, log)
}

// serve runs the load balancer and what answers questions about it.
func (s *settings) serve(ctx context.Context, balancer *lb.Balancer, log *slog.Logger) error {
	listeners, err := s.listen(ctx)
	if err != nil {
		return err
	}
	defer listeners.close()
	log.InfoContext(ctx, "load balancer starts", "version", cli.Version, "trench", s.Trench, "conduit", s.Conduit, "nsp", s.NSP, "feed", s.Feed)
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return serveHealth(running, balancer, listeners.health) })
	if listeners.metrics != nil {
		group.Go(func() error { return serveMetrics(running, balancer.Metrics(), listeners.metrics) })
	}
	group.Go(func() error {
		if err := balancer.Run(running); err != nil {
			return err
		}
		if ctx.Err() == nil && running.Err() == nil {
			return errors.New("the load balancer ended by itself")
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}
