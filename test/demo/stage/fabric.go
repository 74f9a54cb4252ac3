package stage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/demo/traffic"
	"github.com/nordix/meridio-nsp/test/netns"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/process"
)

const (
	realConduit, realStream = "conduit-r", "stream-r"
	// realApp is the Service, and the label of its pods.
	realApp = "real"

	packetsPerSecond, connectionsPerSecond = 2000, 100
	flowsOfClient                          = 300
	gateway                                = "172.16.0.1"
)

// realVIP is that of play.Configure.
var realVIP = netip.MustParseAddrPort("20.0.0.1:5000")

// fabric is where the packets of a side go, each party in a network namespace of its own:
//
//	client --- 10.0.0.0/24 --- load balancer, a bridge --- 172.16.0.0/16 --- targets with their sidecars
type fabric struct {
	side       *side
	client, lb *room
	udp, tcp   *traffic.Ledger
	balancer   *process.Process
	// log is that of the balancer.
	log      string
	stopLoad func()

	mu      sync.Mutex
	targets map[int]*target
}

// target is a pod that takes packets.
type target struct {
	name string
	room *room
	sink *traffic.Sink
}

// openFabric makes client and load balancer. It belongs to the side, which closes it.
func (s *side) openFabric(ctx context.Context, began time.Time) (err error) {
	f := &fabric{
		side: s, targets: make(map[int]*target), udp: traffic.NewLedger(began), tcp: traffic.NewLedger(began),
	}
	s.fabric = f
	if f.client, err = s.room("client"); err != nil {
		return err
	}
	if f.lb, err = s.room("lb", s.nsp.Address(), s.trench.Address()); err != nil {
		return err
	}
	err = netns.Cable(netns.End{Space: f.lb.space, Link: "client", Addresses: []string{"10.0.0.1/24"}},
		netns.End{Space: f.client.space, Link: "eth0", Addresses: []string{"10.0.0.2/24"}})
	err = errors.Join(err, f.lb.space.Forward(), f.lb.space.AddBridge("br0", gateway+"/16"), f.client.space.AddRoute("0.0.0.0/0", "10.0.0.1"))
	if err != nil {
		return err
	}
	s.onClose(func() {
		if f.balancer != nil {
			f.balancer.Kill()
		}
	})
	return errors.Join(s.configureReal(ctx), f.startBalancer(ctx))
}

// room opens a room that the side closes.
func (s *side) room(name string, reaches ...string) (*room, error) {
	r, err := openRoom(s.name+" "+name, reaches...)
	s.onClose(r.close)
	return r, err
}

// configureReal adds a conduit with one stream and one flow to the trench, as Meridio's operator does.
func (s *side) configureReal(ctx context.Context) error {
	maps := s.cluster.Client().CoreV1().ConfigMaps(s.name)
	cm, err := maps.Get(ctx, "meridio-configuration-"+trenchName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the configuration of the trench: %w", err)
	}
	cm.Data["conduits"] += fmt.Sprintf("- name: %s\n  trench: %s\n", realConduit, trenchName)
	cm.Data["streams"] += fmt.Sprintf("- name: %s\n  conduit: %s\n  max-targets: 100\n", realStream, realConduit)
	cm.Data["flows"] += fmt.Sprintf("- name: flow-r\n  stream: %s\n  vips: [vip-a]\n  protocols: [tcp, udp]\n  source-subnets: [0.0.0.0/0]\n"+
		"  source-port-ranges: [1024-65535]\n  destination-port-ranges: [\"%d\"]\n  priority: 1\n", realStream, realVIP.Port())
	if _, err := maps.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("adding a conduit to the trench: %w", err)
	}
	return nil
}

// startBalancer runs the program in its namespace.
func (f *fabric) startBalancer(ctx context.Context) error {
	nsp, err := play.Build(ctx) // it was built before
	if err != nil {
		return err
	}
	dir, err := f.side.directory("lb")
	if err != nil {
		return err
	}
	f.log = filepath.Join(dir, "lb.log")
	log, err := os.OpenFile(f.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of the load balancer: %w", err)
	}
	defer log.Close()
	f.balancer, err = f.lb.space.Start(process.Config{
		Path: filepath.Join(filepath.Dir(nsp), "stateless-lb"), Output: log,
		Args: []string{
			"--namespace=" + f.side.name, "--trench=" + trenchName, "--conduit=" + realConduit, "--transport=plaintext",
			"--nsp-address=" + f.side.trench.Address(), "--feed-address=" + f.side.nsp.Address(),
			"--health-socket=" + filepath.Join(dir, "health.sock"), "--log-level=debug",
		},
	})
	return err
}

// addTarget makes a pod whose application lives, with a sidecar that opens streams on the pod's interface by itself.
func (f *fabric) addTarget(ctx context.Context, number int) error {
	s, name := f.side, fmt.Sprintf("real-%d", number)
	address := fmt.Sprintf("172.16.1.%d/16", number)
	s.bears(name, []string{address})
	r, err := s.room(name, s.nsp.Address(), s.trench.Address())
	if err != nil {
		return err
	}
	err = netns.Cable(netns.End{Space: f.lb.space, Link: fmt.Sprintf("t%d", number), Bridge: "br0"},
		netns.End{Space: r.space, Link: "eth0", Addresses: []string{address}})
	if err != nil {
		return err
	}
	sink, err := traffic.OpenSink(traffic.SinkConfig{Space: r.space, Link: "eth0", Number: number, At: realVIP, UDP: f.udp})
	if err != nil {
		return err
	}
	s.onClose(sink.Close)
	if err := sink.Live(); err != nil {
		return err
	}
	f.mu.Lock()
	f.targets[number] = &target{name, r, sink}
	f.mu.Unlock()
	p, err := s.cluster.Pod(ctx, cluster.PodConfig{Namespace: s.name, Name: name, Labels: app(realApp), Ready: true})
	if err != nil {
		return err
	}
	return s.startSidecar(ctx, r, workload{name: name, uid: string(p.UID)},
		"--connector=interface", "--interface=eth0", "--gateway="+gateway, "--trench-server="+s.trench.Address())
}

// target is one that was added.
func (f *fabric) target(number int) *target {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.targets[number]
}

// removeTarget is the end of a pod: the sidecar is told to end, the namespace goes, the kubelet reports that the containers have ended.
func (f *fabric) removeTarget(ctx context.Context, number int) error {
	t := f.target(number)
	t.sink.Die()
	t.room.sidecar.Stop()
	t.sink.Close()
	t.room.close()
	return f.side.cluster.Finish(ctx, f.side.name, t.name)
}

// each does something with several targets at once.
func each(numbers []int, do func(number int) error) error {
	errs := make([]error, len(numbers))
	var all sync.WaitGroup
	for i, n := range numbers {
		all.Go(func() { errs[i] = do(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// realService is the pool of the stream.
func realService(namespace string) cluster.ServiceConfig {
	return cluster.ServiceConfig{
		Namespace: namespace, Name: realApp, Labels: play.PoolLabels(trenchName, realConduit, realStream), Selector: app(realApp),
		Port: int32(realVIP.Port()),
	}
}

// watched is the time that tells what happens now: the latest of which it is known what became of the packets.
const watched = 300 * time.Millisecond

// now counts the packets of the latest time that is over.
func (f *fabric) now() traffic.Count {
	to := time.Now().Add(-traffic.Grace)
	return f.udp.Count(to.Add(-watched), to)
}

// sharedBy tells whether just these targets take all packets now.
func (f *fabric) sharedBy(numbers []int) bool {
	c := f.now()
	return c.LostAll() == 0 && slices.Equal(slices.Sorted(maps.Keys(c.Took)), numbers)
}

// between are the numbers of targets.
func between(first, last int) (numbers []int) {
	for n := first; n <= last; n++ {
		numbers = append(numbers, n)
	}
	return numbers
}
