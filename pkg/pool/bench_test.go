package pool

import (
	"fmt"
	"testing"
)

// crowd is one pool of n members in slices of 100, as the endpointslice controller makes them.
func crowd(n int) (*Table, []Slice) {
	t := New(Config{Namespace: own})
	t.SetService(service("crowd", "t1", "x1"))
	var all []Slice
	for i := range n / 100 {
		x := slice4("crowd", fmt.Sprint("crowd-", i), uint64(i+1))
		for j := range 100 {
			u := i*100 + j
			x.Endpoints = append(x.Endpoints, pod(fmt.Sprintf("b51cc4f7-95a3-4f0c-9d8e-%012d", u), fmt.Sprintf("10.1.%d.%d", u/250, u%250+1), true))
		}
		all = append(all, x)
		t.SetSlice(x)
	}
	t.Flush()
	return t, all
}

// BenchmarkFlush is one readiness flip in a pool of 10,000 members.
func BenchmarkFlush(b *testing.B) {
	t, all := crowd(10_000)
	version := uint64(1000)
	b.ReportAllocs()
	for b.Loop() {
		x := all[42]
		x.Endpoints = append([]Endpoint(nil), x.Endpoints...)
		version++
		x.Version = version
		x.Endpoints[7].Ready = new(version%2 == 0)
		t.SetSlice(x)
		if d := t.Flush(); len(d.Members) != 1 || len(d.Pools) != 1 {
			b.Fatalf("%d members and %d pools changed", len(d.Members), len(d.Pools))
		}
	}
}

// BenchmarkFlushAll is the first Flush of 10,000 members.
func BenchmarkFlushAll(b *testing.B) {
	for b.Loop() {
		crowd(10_000)
	}
}
