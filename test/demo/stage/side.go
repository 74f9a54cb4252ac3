package stage

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

const (
	trenchName = "trench-a"
	conduit    = "conduit-a"
	oldLB      = "lb-old"
)

var streams = []string{"stream-a", "stream-b", "stream-c"}

// side is one namespace: a namespace process, the process of its one trench, load balancers, and the pods with their sidecars.
type side struct {
	name    string
	cluster *cluster.Cluster
	journal *journal
	// nsp is the namespace process, trench that of the trench, which relays to it.
	nsp, trench *play.NSP
	client      *client.Client
	slices      *play.Slices
	lbs         map[string]interface{ Live() bool }
	// real is whether pods have the sidecar program, in network namespaces of their own.
	real bool
	// fabric is where real packets go; nil before they do.
	fabric  *fabric
	closers []func()

	mu   sync.Mutex
	pods map[string]*pod
	byIP map[string]string
}

// pod is a pod with its sidecar, or with a TAPA of Meridio 1.x.
type pod struct {
	holds func(stream string) bool
	old   *play.LegacyTAPA // nil where it has a sidecar
	stop  func()
}

// openSide starts everything but pods. args are for the namespace process. What is returned must be closed, also after an error.
func openSide(ctx context.Context, w *world, name string, args ...string) (*side, error) {
	s := &side{
		name: name, cluster: w.cluster, real: w.real, journal: newJournal(), lbs: make(map[string]interface{ Live() bool }),
		pods: make(map[string]*pod), byIP: make(map[string]string),
	}
	if err := s.startNSP(ctx, args); err != nil {
		return s, err
	}
	if err := s.startTrench(ctx); err != nil {
		return s, err
	}
	return s, s.startWatchers(ctx)
}

func (s *side) startNSP(ctx context.Context, args []string) error {
	if err := s.cluster.EnsureNamespace(ctx, s.name); err != nil {
		return err
	}
	s.onClose(s.dropNamespace)
	values := chart.Values{"authorisation": "none", "trenches": map[string]any{"managedBy": "chart", "list": []any{map[string]any{"name": trenchName}}}}
	if err := chart.Install(ctx, s.cluster, s.name, values); err != nil {
		return err
	}
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(ctx, s.name, chart.ServiceAccount)
	if err != nil {
		return err
	}
	most := make(map[string]int)
	for _, stream := range streams {
		most[stream] = 100
	}
	if err := play.Configure(ctx, s.cluster.Client(), s.name, trenchName, conduit, most); err != nil {
		return err
	}
	dir, err := s.directory("nsp")
	if err != nil {
		return err
	}
	s.nsp, err = play.StartNSP(ctx, play.NSPConfig{
		Namespace: s.name, Kubeconfig: kubeconfig, Dir: dir,
		Args: append([]string{"--authorisation=none", "--transport=plaintext"}, args...),
	})
	if err != nil {
		return err
	}
	s.onClose(s.nsp.Stop)
	s.client, err = client.New(client.Config{
		Address: s.nsp.Address(), Credentials: insecure.NewCredentials(), Log: slog.New(slog.DiscardHandler),
	})
	return err
}

// directory makes one. The cluster removes it, also that of a run that was killed.
func (s *side) directory(of string) (string, error) {
	dir := filepath.Join(s.cluster.Dir(), of+"-"+s.name)
	return dir, os.MkdirAll(dir, 0o700)
}

// startTrench starts the process of the trench, with the rights that the chart gives it: to watch one ConfigMap.
func (s *side) startTrench(ctx context.Context) error {
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(ctx, s.name, "nsp-trench-"+trenchName)
	if err != nil {
		return err
	}
	dir, err := s.directory("trench")
	if err != nil {
		return err
	}
	s.trench, err = play.StartNSP(ctx, play.NSPConfig{
		Namespace: s.name, Kubeconfig: kubeconfig, Dir: dir, Trench: trenchName,
		Args: []string{"--transport=plaintext", "--namespace-nsp=" + s.nsp.Address()},
	})
	if err == nil {
		s.onClose(s.trench.Stop)
	}
	return err
}

func (s *side) startWatchers(ctx context.Context) error {
	var err error
	if s.slices, err = play.WatchSlices(context.WithoutCancel(ctx), s.cluster.Client(), s.name); err != nil {
		return err
	}
	s.slices.OnEvent = func(ev play.SliceEvent) {
		s.journal.add(event{at: ev.Time, kind: announced, who: "EndpointSlice", what: "%s: " + ev.State, pod: ev.Pod})
	}
	s.background(s.slices.Run)
	for _, name := range []string{"lb-1", "lb-2"} {
		if err := s.startLB(name); err != nil {
			return err
		}
	}
	return s.startOldLB()
}

func (s *side) startLB(name string) error {
	lb, err := play.NewLB(s.client, trenchName, conduit)
	if err != nil {
		return err
	}
	lb.OnUpdate = func(u client.Update) {
		for _, t := range u.Removed {
			s.journal.send(u.Received, route{name, t.GetStream()}, s.podAt(t.GetAddresses()), false, "unregistered")
		}
		for _, t := range u.Set {
			on := t.GetState() == targetpoolv1.Target_STATE_ACTIVE
			s.journal.send(u.Received, route{name, t.GetStream()}, s.podAt(t.GetAddresses()), on, t.GetReason())
		}
	}
	s.lbs[name] = lb
	s.background(lb.Run)
	return nil
}

// startOldLB starts a load balancer of Meridio 1.x at the trench process. It hears the same, though it knows nothing of Services.
func (s *side) startOldLB() error {
	conn, err := s.trench.Dial()
	if err != nil {
		return err
	}
	s.onClose(func() { _ = conn.Close() })
	lb := play.NewLegacyLB(conn, trenchName, conduit, streams...)
	lb.OnUpdate = func(u play.LegacyUpdate) {
		r := route{oldLB, u.Stream}
		for _, t := range u.Removed {
			s.journal.send(u.Received, r, s.podAt(strings.Split(t, ",")), false, "")
		}
		for _, t := range u.Added {
			s.journal.send(u.Received, r, s.podAt(strings.Split(t, ",")), true, "")
		}
	}
	s.lbs[oldLB] = lb
	s.background(lb.Run)
	return nil
}

// podAt names the pod that bears the addresses of the secondary network.
func (s *side) podAt(addresses []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range addresses {
		if name := s.byIP[a]; name != "" {
			return name
		}
	}
	return strings.Join(addresses, ",")
}

// addPod makes a pod with a sidecar. number picks its address; with dual it has an IPv6 address too.
func (s *side) addPod(ctx context.Context, name string, labels map[string]string, number int, dual bool) error {
	p, err := s.cluster.Pod(ctx, cluster.PodConfig{Namespace: s.name, Name: name, Labels: labels, Ready: true})
	if err != nil {
		return err
	}
	addresses := []string{fmt.Sprintf("172.16.0.%d/24", number)}
	if dual {
		addresses = append(addresses, fmt.Sprintf("fd00::%d/64", number))
	}
	s.bears(name, addresses)
	give := s.playedSidecar
	if s.real {
		give = s.realSidecar
	}
	made, err := give(ctx, workload{name, string(p.UID), addresses})
	if err != nil {
		return err
	}
	s.has(name, made)
	return nil
}

// playedSidecar is sidecar and TAPA in one, and registers at the namespace process.
func (s *side) playedSidecar(_ context.Context, of workload) (*pod, error) {
	conn, err := s.nsp.Dial()
	if err != nil {
		return nil, err
	}
	s.onClose(func() { _ = conn.Close() })
	tapa, err := play.NewTAPA(play.TAPAConfig{
		Client: s.client, Conn: conn, Namespace: s.name, Pod: of.name, PodUID: of.uid, Addresses: of.addresses,
		OnEvent: func(ev play.TAPAEvent) { s.holderSays("sidecar", ev) },
	})
	if err != nil {
		return nil, err
	}
	return &pod{stop: s.background(tapa.Run), holds: func(stream string) bool {
		return slices.Contains(tapa.Open(), trenchName+"/"+conduit+"/"+stream)
	}}, nil
}

// addOldPod makes a pod with a TAPA of Meridio 1.x that calls the trench process from the pod's address, which is that of this
// machine: pods are played here.
func (s *side) addOldPod(ctx context.Context, name string, labels map[string]string, number int) error {
	host := hostAddress().String()
	_, err := s.cluster.Pod(ctx, cluster.PodConfig{Namespace: s.name, Name: name, Labels: labels, Ready: true, IPs: []string{host}})
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(s.trench.Address())
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(net.JoinHostPort(host, port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	s.onClose(func() { _ = conn.Close() })
	addresses := []string{fmt.Sprintf("172.16.0.%d/24", number)}
	tapa := play.NewLegacyTAPA(play.LegacyTAPAConfig{
		Conn: conn, Trench: trenchName, Conduit: conduit, Addresses: addresses,
		OnEvent: func(ev play.TAPAEvent) { ev.Pod = name; s.holderSays("old TAPA", ev) },
	})
	s.bears(name, addresses)
	s.has(name, &pod{
		stop: s.background(tapa.Run), old: tapa, holds: func(stream string) bool { return tapa.Identifier(stream) != 0 },
	})
	return nil
}

// hostAddress is one of this machine that a pod may have; invalid if there is none.
func hostAddress() netip.Addr {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// bears notes the addresses of a pod, before anybody can hear of them.
func (s *side) bears(name string, addresses []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range addresses {
		s.byIP[a] = name
	}
}

func (s *side) has(name string, p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[name] = p
}

// old is the TAPA of Meridio 1.x of a pod that has one.
func (s *side) old(name string) *play.LegacyTAPA {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name].old
}

func (s *side) holderSays(who string, ev play.TAPAEvent) {
	short := strings.ReplaceAll(ev.Stream, trenchName+"/"+conduit+"/", "")
	e := event{at: ev.Time, kind: held, who: who, pod: ev.Pod}
	switch ev.What {
	case play.Assigned:
		e.kind = told
		e.what = "of %s: told to hold " + strings.ReplaceAll(short, " ", " and ")
		if short == "" {
			e.what = "of %s: told to hold no stream"
		}
	case play.Opened, play.Closed:
		e.what = "of %s: " + ev.What + " " + short
	case play.Undefined:
		e.what = "of %s: waits for " + short + " to be configured"
	default:
		e.kind, e.what = trouble, "of %s: "+strings.ReplaceAll(ev.What, "%", "%%")
	}
	s.journal.add(e)
}

// removePod is the end of a pod: its sidecar falls silent, and the kubelet reports that the containers have ended.
func (s *side) removePod(ctx context.Context, name string) error {
	s.mu.Lock()
	p := s.pods[name]
	delete(s.pods, name)
	s.mu.Unlock()
	p.stop()
	return s.cluster.Finish(ctx, s.name, name)
}

// holders are the pods whose sidecar holds a stream, sorted.
func (s *side) holders(stream string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for name, p := range s.pods {
		if p.holds(stream) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// all tells whether every load balancer sends a stream to exactly these pods, which are sorted.
func (s *side) all(stream string, pods []string) bool {
	for lb := range s.lbs {
		if !slices.Equal(s.journal.receivers(route{lb, stream}), pods) {
			return false
		}
	}
	return true
}

// background runs something until stop is called or the side is closed. stop waits.
func (s *side) background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			s.journal.add(event{at: time.Now(), kind: trouble, who: "demo", what: strings.ReplaceAll(err.Error(), "%", "%%")})
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	s.onClose(stop)
	return stop
}

// dropNamespace matters for a cluster that was there before only; another one goes altogether.
func (s *side) dropNamespace() {
	if !s.cluster.External() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = s.cluster.DeleteNamespace(ctx, s.name) // the user sees what is left
}

// onClose has f called at the end, before what was given earlier. Several can call it at once.
func (s *side) onClose(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, f)
}

func (s *side) close() {
	for _, f := range slices.Backward(s.closers) {
		f()
	}
}
