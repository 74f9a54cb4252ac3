package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/process"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

const (
	greenName = "green"
	machine   = "vm-1"
	// greenTargets are so many that stand-ins, which draw their identifiers, do not draw the same: a machine sees its own only.
	greenTargets = 10_000
)

// machines has a namespace of its own, in which everybody proves who he is.
func machines(w *world) []scene {
	how := "a stand-in for its sidecar; as root it is a network namespace with the real one."
	if w.real {
		how = "a network namespace that no pod knows, with the real sidecar, which needs no TAPA."
	}
	scenes := []scene{
		{
			what: "Namespace green, with mTLS: Service web selects the pod web-1 and the virtual machine vm-1",
			why: "The machine is in no cluster: " + how + " An ExternalTarget names its address and its SPIFFE ID, and a grant lets it " +
				"join. Its certificate is all that it shows; the pod shows a token.",
			do:     func(ctx context.Context, w *world) (err error) { w.green, err = openGreen(ctx, w); return err },
			expect: []expectation{greenSends(machine, "web-1")},
		},
		{
			what:   "The grant for vm-1 is withdrawn",
			do:     func(ctx context.Context, w *world) error { return w.green.ungrant(ctx) },
			expect: []expectation{greenSends("web-1")},
		},
		{
			what:   "It is given again",
			do:     func(ctx context.Context, w *world) error { return w.green.grant(ctx) },
			expect: []expectation{greenSends(machine, "web-1")},
		},
	}
	if w.real {
		scenes = append(scenes, scene{
			what:   "The machine is shut down",
			why:    "Its sidecar unregisters, and takes VIPs and routes away.",
			do:     func(_ context.Context, w *world) error { w.green.shutDown(); return nil },
			expect: []expectation{greenSends("web-1")},
		})
	}
	return scenes
}

// greenSends: the load balancer of green sends stream-a to exactly these targets.
func greenSends(targets ...string) expectation {
	return expectation{
		says: fmt.Sprintf("the load balancer of green sends stream-a to %s", names(targets)),
		holds: func(_ context.Context, w *world) bool {
			var active []string
			for target, on := range w.green.lb.Active("stream-a") {
				if on {
					active = append(active, filepath.Base(target))
				}
			}
			slices.Sort(active)
			return slices.Equal(active, targets)
		},
	}
}

// greenSide is a namespace whose process asks for certificates.
type greenSide struct {
	*side
	ca       *spiffe.Authority
	lb       *play.LB
	shutDown func()
}

const machineObjects = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: ExternalTarget
metadata: {name: vm-1, namespace: green, labels: {app: web}}
spec: {source: {addresses: {ips: [192.0.2.1]}}, identity: {spiffeID: "spiffe://example.org/vm/1"}}
`

const machineGrant = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: TargetGrant
metadata: {name: machines, namespace: green}
spec: {from: [{namespace: green, externalTargets: [vm-1]}], to: [{trench: trench-a}]}
`

func openGreen(ctx context.Context, w *world) (*greenSide, error) {
	g := &greenSide{side: &side{name: greenName, cluster: w.cluster, real: w.real, journal: newJournal()}}
	w.green = g // which is closed, whatever comes
	var err error
	if g.ca, err = spiffe.NewAuthority("example.org"); err != nil {
		return g, err
	}
	socket, own, err := g.identity(ctx, "nsp", "/ns/green/sa/"+chart.ServiceAccount)
	if err != nil {
		return g, err
	}
	if err := g.startProcesses(ctx, socket, own); err != nil {
		return g, err
	}
	if g.lb, err = play.NewLB(g.client, trenchName, conduit); err != nil {
		return g, err
	}
	g.background(g.lb.Run)
	if err := errors.Join(g.cluster.Apply(ctx, []byte(machineObjects), false), g.grant(ctx), service("web", "stream-a")(ctx, g.side)); err != nil {
		return g, err
	}
	return g, errors.Join(g.addPod(ctx), g.addMachine(ctx))
}

// identity is a workload API that gives an SVID of the path, and a client of that.
func (g *greenSide) identity(ctx context.Context, name, path string) (socket string, source *auth.SPIFFE, err error) {
	dir, err := g.directory("spiffe-" + name)
	if err != nil {
		return "", nil, err
	}
	agent := spiffe.NewAgent(filepath.Join(dir, "agent.sock"))
	svid, err := g.ca.SVID(path, time.Hour)
	if err == nil {
		err = errors.Join(agent.Start(ctx), agent.Issue(svid, g.ca.Bundle()))
	}
	if err != nil {
		return "", nil, err
	}
	g.onClose(func() { _ = agent.Stop() })
	if source, err = auth.OpenSPIFFE(ctx, auth.SPIFFEConfig{Socket: agent.Socket(), Log: slog.New(slog.DiscardHandler)}); err == nil {
		g.onClose(source.Close)
	}
	return agent.Socket(), source, err
}

func (g *greenSide) startProcesses(ctx context.Context, socket string, own *auth.SPIFFE) error {
	if err := g.cluster.EnsureNamespace(ctx, g.name); err != nil {
		return err
	}
	g.onClose(g.dropNamespace)
	err := errors.Join(
		chart.Install(ctx, g.cluster, g.name, chart.Values{"transport": "spiffe", "controller": map[string]any{"enabled": true}}),
		play.Configure(ctx, g.cluster.Client(), g.name, trenchName, conduit, map[string]int{"stream-a": greenTargets}))
	if err != nil {
		return err
	}
	accounts := [2]string{}
	for i, account := range []string{chart.ServiceAccount, chart.ControllerAccount} {
		if accounts[i], err = g.cluster.ServiceAccountKubeconfig(ctx, g.name, account); err != nil {
			return err
		}
	}
	dir, err := g.directory("nsp")
	if err != nil {
		return err
	}
	g.nsp, err = play.StartNSP(ctx, play.NSPConfig{
		Namespace: g.name, Kubeconfig: accounts[0], Dir: dir, Args: []string{"--spiffe-endpoint-socket=" + socket}, Credentials: own.Client(),
	})
	if err != nil {
		return err
	}
	g.onClose(g.nsp.Stop)
	controller, err := process.Start(process.Config{Path: g.nsp.Binary(), Output: io.Discard, Args: []string{
		"controller", "--namespace=" + g.name, "--kubeconfig=" + accounts[1], "--leader-election=false", "--metrics-address=", "--health-address=",
	}})
	if err != nil {
		return err
	}
	g.onClose(controller.Kill)
	g.client, err = client.New(client.Config{Address: g.nsp.Address(), Credentials: own.Client(), Log: slog.New(slog.DiscardHandler)})
	return err
}

func (g *greenSide) grant(ctx context.Context) error {
	return g.cluster.Apply(ctx, []byte(machineGrant), false)
}

func (g *greenSide) ungrant(ctx context.Context) error {
	_, err := g.cluster.Kubectl(ctx, "delete", "targetgrant", "-n", g.name, "machines")
	return err
}

// addPod makes the pod web-1, whose sidecar is a stand-in that shows the pod's token.
func (g *greenSide) addPod(ctx context.Context) error {
	_, source, err := g.identity(ctx, "web", "/ns/green/sa/web")
	if err != nil {
		return err
	}
	pod, err := g.cluster.Pod(ctx, cluster.PodConfig{Namespace: g.name, Name: "web-1", Labels: app("web"), ServiceAccount: "web", Ready: true})
	if err != nil {
		return err
	}
	token, err := g.cluster.PodToken(ctx, pod, "web", auth.Audience)
	if err != nil {
		return err
	}
	dir, err := g.directory("web-1")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return fmt.Errorf("writing the token of the pod: %w", err)
	}
	cfg := play.TAPAConfig{Namespace: g.name, Pod: "web-1", PodUID: string(pod.UID), Addresses: []string{"172.16.0.1/24"}}
	_, err = g.standIn(cfg, client.Config{Credentials: source.Client(), PerRPC: client.NewTokenFile(file, false)})
	return err
}

// addMachine makes the virtual machine.
func (g *greenSide) addMachine(ctx context.Context) error {
	socket, source, err := g.identity(ctx, machine, "/vm/1")
	if err != nil {
		return err
	}
	const address = "172.16.0.2/24"
	if !g.real {
		cfg := play.TAPAConfig{Namespace: g.name, ExternalTarget: machine, Addresses: []string{address}}
		g.shutDown, err = g.standIn(cfg, client.Config{Credentials: source.Client(), PerRPC: client.NewSession()})
		return err
	}
	r, err := g.room(machine, g.nsp.Address())
	if err != nil {
		return err
	}
	if err := r.space.AddBridge("eth1", address); err != nil {
		return err
	}
	dir, err := g.directory(machine)
	if err != nil {
		return err
	}
	r.sidecar, err = play.StartSidecar(ctx, play.SidecarConfig{
		Namespace: g.name, ExternalTarget: machine, NSP: g.nsp.Address(), Dir: dir, Thread: r.space.Enter,
		Args: []string{"--connector=interface", "--interface=eth1", "--gateway=" + gateway, "--spiffe-endpoint-socket=" + socket},
	})
	g.shutDown = r.sidecar.Stop
	return err
}

// standIn plays a sidecar.
func (g *greenSide) standIn(cfg play.TAPAConfig, how client.Config) (stop func(), err error) {
	how.Address, how.Log = g.nsp.Address(), slog.New(slog.DiscardHandler)
	if cfg.Client, err = client.New(how); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(how.Address, grpc.WithTransportCredentials(how.Credentials), grpc.WithPerRPCCredentials(how.PerRPC))
	if err != nil {
		return nil, fmt.Errorf("dialling the nsp of green: %w", err)
	}
	g.onClose(func() { _ = conn.Close() })
	cfg.Conn, cfg.MaxTargets = conn, greenTargets
	tapa, err := play.NewTAPA(cfg)
	if err != nil {
		return nil, err
	}
	return g.background(tapa.Run), nil
}
