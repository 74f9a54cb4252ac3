package main

import (
	"context"
	"sync"

	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/play"
)

// Sidecars, in a client process, are TAPAs that do what they are told: they open the streams they are assigned, and close
// those they are not.
type Sidecars struct {
	all     []*play.TAPA
	end     context.CancelFunc
	running sync.WaitGroup
}

// SidecarsArgs name the pods.
type SidecarsArgs struct {
	Dial      dial
	Namespace string
	Pods      []Pod
}

// Pod is one with a sidecar.
type Pod struct{ Name, UID, Address string }

// Start starts a sidecar for each pod.
func (s *Sidecars) Start(a SidecarsArgs, _ *None) error {
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background())
	creds, err := credentialsOf(a.Dial)
	if err != nil {
		return err
	}
	c, err := client.New(client.Config{Address: a.Dial.Address, Credentials: creds})
	if err != nil {
		return err
	}
	for _, p := range a.Pods {
		conn, err := a.Dial.open(connectLimit)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		t, err := play.NewTAPA(play.TAPAConfig{
			Client: c, Conn: conn, Namespace: a.Namespace, Pod: p.Name, PodUID: p.UID, Addresses: []string{p.Address},
		})
		if err != nil {
			return err
		}
		s.all = append(s.all, t)
		s.running.Go(func() { _ = t.Run(ctx) })
	}
	return nil
}

// Opened waits until every sidecar has a stream open.
func (s *Sidecars) Opened(None, *None) error {
	return until(gatherLimit, "opening streams", func() bool {
		for _, t := range s.all {
			if len(t.Open()) == 0 {
				return false
			}
		}
		return true
	})
}

// Stop ends all.
func (s *Sidecars) Stop(None, *None) error {
	if s.end != nil {
		s.end()
		s.running.Wait()
	}
	s.all = nil
	return nil
}
