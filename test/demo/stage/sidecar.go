package stage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/nordix/meridio-nsp/test/netns"
	"github.com/nordix/meridio-nsp/test/play"
)

// workload is a pod as its sidecar knows it.
type workload struct {
	name, uid string
	// addresses are those of the secondary network, as CIDRs.
	addresses []string
}

// room is a network namespace of a pod with the sidecar program in it.
type room struct {
	space   *netns.Space
	doors   []*door
	sidecar *play.Sidecar
}

// openRoom makes a namespace from which the addresses of other processes are reached. What is returned must be closed, also after
// an error.
func openRoom(name string, reaches ...string) (*room, error) {
	space, err := netns.New(name)
	if err != nil {
		return nil, err
	}
	r := &room{space: space}
	for _, address := range reaches {
		d, err := openDoor(space, address)
		if err != nil {
			return r, err
		}
		r.doors = append(r.doors, d)
	}
	return r, nil
}

// close ends what is there without a word to anybody. It is safe to call again, and of nil.
func (r *room) close() {
	if r == nil {
		return
	}
	if r.sidecar != nil {
		r.sidecar.Kill()
	}
	for _, d := range r.doors {
		d.close()
	}
	r.space.Close()
}

// startSidecar runs the program for a pod. args are added to its command line.
func (s *side) startSidecar(ctx context.Context, r *room, of workload, args ...string) (err error) {
	dir, err := s.directory(of.name)
	if err != nil {
		return err
	}
	r.sidecar, err = play.StartSidecar(ctx, play.SidecarConfig{
		Namespace: s.name, Pod: of.name, PodUID: of.uid, NSP: s.nsp.Address(), Dir: dir, Thread: r.space.Enter, Args: args,
	})
	return err
}

// realSidecar gives a pod a network namespace with its addresses, the sidecar program, and a TAPA of Meridio 1.x, which the sidecar
// drives and which registers at the process of the trench.
func (s *side) realSidecar(ctx context.Context, of workload) (*pod, error) {
	r, err := openRoom(of.name, s.nsp.Address())
	s.onClose(r.close)
	if err != nil {
		return nil, err
	}
	if err := r.space.AddBridge("net1", of.addresses...); err != nil {
		return nil, err
	}
	if err := s.startSidecar(ctx, r, of); err != nil {
		return nil, err
	}
	tapa := play.NewAmbassador(play.AmbassadorConfig{
		Socket: r.sidecar.AmbassadorSocket(), Addresses: of.addresses, Refresh: 10 * time.Second,
		Dial: func(string) (*grpc.ClientConn, error) { return s.trench.Dial() },
		OnCall: func(open bool, stream string) {
			what := map[bool]string{true: "open ", false: "close "}[open] + stream
			s.journal.add(event{at: time.Now(), kind: told, who: "sidecar", what: "of %s: has the TAPA " + what, pod: of.name})
		},
		OnStatus: func(stream, status string) { s.tapaSays(of.name, stream, status) },
	})
	if err := tapa.Start(); err != nil {
		return nil, fmt.Errorf("starting the TAPA of %s: %w", of.name, err)
	}
	stop := sync.OnceFunc(func() {
		tapa.Kill()
		r.close()
	})
	s.onClose(stop)
	return &pod{stop: stop, holds: func(stream string) bool { return tapa.Statuses()[stream] == statusOpen }}, nil
}

// The statuses of an Ambassador's streams that count here.
const (
	statusOpen    = "OPEN"
	statusRemoved = "removed"
)

func (s *side) tapaSays(pod, stream, status string) {
	what := map[string]string{statusOpen: play.Opened, statusRemoved: play.Closed}[status]
	if what != "" {
		s.holderSays("TAPA", play.TAPAEvent{Time: time.Now(), Pod: pod, Stream: stream, What: what})
	}
}
