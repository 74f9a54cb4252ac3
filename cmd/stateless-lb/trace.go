package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/lb/nft"
)

// question is a packet as flags describe it.
type question struct {
	src, dst, proto, header string
	sport, dport            uint16
	start, quoted           bool
}

func newTrace() *cobra.Command {
	var cfg nft.Config
	var q question
	var format string
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Say which way a packet takes, and why",
		Long: "trace follows a packet through the tables that the kernel has now: which flow takes it, which slot of the stream's table its\n" +
			"hash points to, which target that is and where the routes lead. Nothing is sent. Run it in the load balancer's pod, as root.",
		Example: "  stateless-lb trace --src 10.0.0.2 --sport 40000 --dst 20.0.0.1 --dport 80 --proto tcp\n" +
			"  stateless-lb trace --src 10.0.0.2 --sport 40000 --dst 20.0.0.1 --dport 80 --proto udp --icmp-error -o json",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			packet, err := q.packet()
			if format != "table" && format != "json" {
				err = errors.Join(err, fmt.Errorf("--output is %q: choose table or json", format))
			}
			if err != nil {
				return cli.Usage(err)
			}
			plane, err := nft.New(cfg)
			if err != nil {
				return err
			}
			defer plane.Close()
			t, err := plane.Trace(packet)
			if err != nil {
				return err
			}
			return printTrace(cmd.OutOrStdout(), t, format)
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.src, "src", "", "address of the client (required)")
	f.StringVar(&q.dst, "dst", "", "address that the packet is sent to, a VIP (required)")
	f.StringVar(&q.proto, "proto", "tcp", "tcp, udp or sctp")
	f.Uint16Var(&q.sport, "sport", 0, "source port")
	f.Uint16Var(&q.dport, "dport", 0, "destination port")
	f.BoolVar(&q.start, "start", false, "the packet starts a connection: TCP SYN, SCTP INIT; matters while targets drain")
	f.BoolVar(&q.quoted, "icmp-error", false, "follow the ICMP error about the answer to the packet instead")
	f.StringVar(&q.header, "header", "", "layer 4 header after the ports, in hex, for flows that match bytes")
	f.StringVarP(&format, "output", "o", "table", "table or json")
	cli.Complete(cmd, "proto", "tcp", "udp", "sctp")
	cli.Complete(cmd, "output", "table", "json")
	addPlane(cmd, &cfg)
	return cmd
}

func (q question) packet() (nft.Packet, error) {
	p := nft.Packet{SourcePort: q.sport, DestinationPort: q.dport, Start: q.start, Quoted: q.quoted}
	var errs [4]error
	p.Source, errs[0] = parseAddr(q.src)
	p.Destination, errs[1] = parseAddr(q.dst)
	p.Protocol, errs[2] = nft.ParseProtocol(q.proto)
	p.Header, errs[3] = hex.DecodeString(q.header)
	for i, flag := range []string{"src", "dst", "proto", "header"} {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("--%s: %w", flag, errs[i])
		}
	}
	return p, errors.Join(errs[:]...)
}

func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, fmt.Errorf("%q is no IP address: write one, as 20.0.0.1 or 2001:db8::1", text)
	}
	return a, nil
}

func printTrace(w io.Writer, t *nft.Trace, format string) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(t)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range t.Steps {
		fmt.Fprintf(table, "%s\t%s\n", s.Chain, s.Text)
	}
	if t.Forwarded {
		fmt.Fprintf(table, "\nforwarded\tto target %d of stream %s, by flow %s, via %s\n", t.Identifier, t.Stream, t.Flow, t.Via)
	} else {
		fmt.Fprintf(table, "\nnot forwarded\t%s\n", t.Why)
	}
	return table.Flush()
}
