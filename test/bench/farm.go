package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"os/exec"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// perSlice is how many endpoints the endpointslice controller puts into a slice.
const perSlice = 100

func podName(i int) string { return fmt.Sprintf("pod-%05d", i) }
func podUID(i int) string  { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

// primary and secondary are addresses of pod i.
func primary(i int) string   { return nth(10, 64, i) }
func secondary(i int) string { return nth(100, 64, i) }

func nth(a, b byte, i int) string {
	i++
	return netip.AddrFrom4([4]byte{a, b + byte(i>>16), byte(i >> 8), byte(i)}).String()
}

// farm is a namespace with many members: Services without selector and hand-made slices, because ten thousand real pods would
// take the real controller longer than all measurements together. Member i is in Service and slice i modulo their number.
type farm struct {
	world      *world
	namespace  string
	kubeconfig string
	size       int
	slices     []*discoveryv1.EndpointSlice
	seen       *play.Slices
	stop       context.CancelFunc
}

// farm makes the farm of a size, or returns the one that is there.
func (w *world) farm(ctx context.Context, size int) (*farm, error) {
	if f := w.farms[size]; f != nil {
		return f, nil
	}
	w.say("making %s members", group(fmt.Sprint(size)))
	f := &farm{world: w, namespace: fmt.Sprintf("bench-%d", size), size: size, slices: make([]*discoveryv1.EndpointSlice, size/perSlice)}
	var err error
	if f.kubeconfig, err = w.namespace(ctx, f.namespace, len(f.slices), 2*perSlice); err != nil {
		return nil, err
	}
	for s := range f.slices {
		if err := f.plant(ctx, s); err != nil {
			return nil, err
		}
	}
	if f.seen, err = play.WatchSlices(ctx, w.cluster.Client(), f.namespace); err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	f.stop = stop
	go func() {
		if err := f.seen.Run(watching); err != nil {
			w.say("%v", err)
		}
	}()
	w.farms[size] = f
	return f, nil
}

// plant makes a Service and its slice.
func (f *farm) plant(ctx context.Context, s int) error {
	labels := play.PoolLabels(trench, conduit, streamName(s))
	service, err := f.world.cluster.Service(ctx, cluster.ServiceConfig{Namespace: f.namespace, Name: "pool-" + streamName(s), Labels: labels})
	if err != nil {
		return err
	}
	labels[discoveryv1.LabelServiceName] = service.Name
	labels[discoveryv1.LabelManagedBy] = "nsp-bench"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service.Name + "-1", Labels: labels},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := s; i < f.size; i += len(f.slices) {
		slice.Endpoints = append(slice.Endpoints, f.endpoint(i))
	}
	f.slices[s], err = f.world.cluster.Client().DiscoveryV1().EndpointSlices(f.namespace).Create(ctx, slice, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating slice %s: %w", slice.Name, err)
	}
	return nil
}

func (f *farm) endpoint(i int) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses:  []string{primary(i)},
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		NodeName:   new(cluster.DefaultNode),
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: f.namespace, Name: podName(i), UID: types.UID(podUID(i))},
	}
}

// moment is when something was asked of the API server and when it had answered.
type moment struct{ sent, answered time.Time }

// ready says of a member whether it is ready.
func (f *farm) ready(ctx context.Context, i int, ready bool) (moment, error) {
	return f.change(ctx, i, func(slice *discoveryv1.EndpointSlice, at int) {
		c := &slice.Endpoints[at].Conditions
		c.Ready, c.Serving = new(ready), new(ready)
	})
}

// remove takes a member out of its slice, and add puts it at the end.
func (f *farm) remove(ctx context.Context, i int) (moment, error) {
	return f.change(ctx, i, func(slice *discoveryv1.EndpointSlice, at int) {
		slice.Endpoints = append(slice.Endpoints[:at], slice.Endpoints[at+1:]...)
	})
}

func (f *farm) add(ctx context.Context, i int) (moment, error) {
	return f.change(ctx, i, func(slice *discoveryv1.EndpointSlice, _ int) {
		slice.Endpoints = append(slice.Endpoints, f.endpoint(i))
	})
}

// change updates the slice of a member; at is where in it the member is.
func (f *farm) change(ctx context.Context, i int, edit func(slice *discoveryv1.EndpointSlice, at int)) (moment, error) {
	s := i % len(f.slices)
	slice := f.slices[s].DeepCopy()
	at := 0
	for at < len(slice.Endpoints)-1 && slice.Endpoints[at].TargetRef.Name != podName(i) {
		at++
	}
	edit(slice, at)
	m := moment{sent: time.Now()}
	slice, err := f.world.cluster.Client().DiscoveryV1().EndpointSlices(f.namespace).Update(ctx, slice, metav1.UpdateOptions{})
	if err != nil {
		return m, fmt.Errorf("updating a slice: %w", err)
	}
	m.answered = time.Now()
	f.slices[s] = slice
	return m, nil
}

// versionOf is what the program says of itself.
func versionOf(ctx context.Context, binary string) string {
	out, err := exec.CommandContext(ctx, binary, "version").Output()
	if err != nil {
		return "of unknown version"
	}
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "nsp ")
}
