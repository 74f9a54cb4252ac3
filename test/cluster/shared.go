package cluster

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
)

// shared is the one cluster of a test binary.
var shared struct {
	sync.Mutex
	cluster *Cluster
	err     error
	tried   bool
}

// starting ends when the tests are interrupted: an interrupt must not wait for a build.
var starting, abandonStart = context.WithCancel(context.Background())

// Suite runs the tests of a package that share a cluster. It is what goleak.VerifyTestMain takes.
type Suite struct{ m *testing.M }

// Shared is for TestMain: the cluster that Get starts is stopped after the last test, and when the tests are interrupted.
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(cluster.Shared(m)) }
func Shared(m *testing.M) Suite { return Suite{m: m} }

// Run runs the tests and returns the exit code.
func (s Suite) Run() int {
	interrupts := make(chan os.Signal, 1)
	finished := make(chan struct{})
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case sig := <-interrupts:
			abandonStart()
			stopShared()
			signal.Reset(sig)
			_ = syscall.Kill(os.Getpid(), sig.(syscall.Signal))
		case <-finished:
		}
	})
	code := s.m.Run()
	signal.Stop(interrupts)
	close(finished)
	watching.Wait()
	stopShared()
	return code
}

// Get returns the cluster of this test binary; the first call starts it. The test is skipped under -short. The package's
// TestMain must use Shared.
func Get(t testing.TB) *Cluster {
	t.Helper()
	SkipIfShort(t)
	shared.Lock()
	defer shared.Unlock()
	if !shared.tried {
		shared.tried = true
		shared.cluster, shared.err = Start(starting, Config{})
	}
	if shared.err != nil {
		t.Fatalf("cluster: %v", shared.err)
	}
	return shared.cluster
}

// SkipIfShort skips a test that needs a cluster when short tests are asked for.
func SkipIfShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Kubernetes control plane, which -short leaves out")
	}
}

// stopShared leaves an error behind, so that no later Get starts another.
func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		shared.cluster.Stop()
	}
	shared.tried, shared.cluster, shared.err = true, nil, ErrStopped
}
