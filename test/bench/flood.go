package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Flood, in a client process, are callers that are refused: they have no certificate, and come back at once.
type Flood struct {
	end     context.CancelFunc
	running sync.WaitGroup

	refused, letIn atomic.Int64
}

// FloodArgs say where to, and how many at a time.
type FloodArgs struct {
	Address string
	Callers int
}

// Start begins. The process takes only the processor time that nobody else wants: a real flood comes from elsewhere.
func (f *Flood) Start(a FloodArgs, _ *None) error {
	if err := beNice(); err != nil {
		return err
	}
	var ctx context.Context
	ctx, f.end = context.WithCancel(context.Background())
	for range a.Callers {
		f.running.Go(func() {
			for ctx.Err() == nil {
				f.knock(ctx, a.Address)
			}
		})
	}
	return nil
}

// beNice lowers the priority of all threads; those that come later inherit it.
func beNice() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("finding the threads of the flood: %w", err)
	}
	for _, t := range threads {
		id, _ := strconv.Atoi(t.Name())
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, id, 19); err != nil {
			return fmt.Errorf("lowering the priority of the flood: %w", err)
		}
	}
	return nil
}

// knock tries once. With TLS 1.3 a client learns that it was refused when it reads.
func (f *Flood) knock(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify: true, // it does not mind who refuses it
	}}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err == nil {
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		_, err = conn.Read(make([]byte, 1))
	}
	var refusal *net.OpError
	switch {
	case err == nil:
		f.letIn.Add(1)
	case ctx.Err() == nil && errors.As(err, &refusal) && refusal.Op == "remote error":
		f.refused.Add(1)
	}
}

// FloodReply counts since it was last asked.
type FloodReply struct{ Refused, LetIn int }

// Count tells how it went.
func (f *Flood) Count(_ None, r *FloodReply) error {
	r.Refused, r.LetIn = int(f.refused.Swap(0)), int(f.letIn.Swap(0))
	return nil
}

// Stop ends it.
func (f *Flood) Stop(None, *None) error {
	if f.end != nil {
		f.end()
		f.running.Wait()
		f.end = nil
	}
	return nil
}

// flood measures what callers that are refused take from those that are not: the same figures without them and with them.
func flood(ctx context.Context, w *world, size int) error {
	s, stop, err := w.scene(ctx, size, true)
	if err != nil {
		return err
	}
	defer stop()
	if err := s.populate(ctx); err != nil {
		return err
	}
	peers, hangUp, err := w.peers(ctx, 1)
	if err != nil {
		return err
	}
	defer hangUp()
	if err := s.accepted(ctx); err != nil {
		return err
	}
	if _, err := call[None](ctx, peers[0], "Flood.Start", FloodArgs{Address: s.nsp.dial.Address, Callers: 64}); err != nil {
		return err
	}
	s.aside = ", flooded"
	began := time.Now()
	used, err := s.nsp.using(func() error { return s.accepted(ctx) })
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	r, err := call[FloodReply](ctx, peers[0], "Flood.Count", None{})
	if err != nil {
		return err
	}
	if r.LetIn > 0 {
		return fmt.Errorf("%d callers without a certificate were let in", r.LetIn)
	}
	s.report.figure("callers refused meanwhile", s.setup(), "per second", float64(r.Refused)/took,
		fmt.Sprintf("64 at a time, without a certificate; nsp used %s processors", number(used.Seconds()/took)))
	_, err = call[None](ctx, peers[0], "Flood.Stop", None{})
	return err
}

// accepted measures what those have who are let in.
func (s *scene) accepted(ctx context.Context) error {
	if err := s.fastPath(ctx, 100, pick(s.world, 100, 20), true); err != nil {
		return err
	}
	return s.rate(ctx, manyCallers, true)
}
