package client

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	pb "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

func TestKey(t *testing.T) {
	for _, c := range []struct {
		a, b []string
		same bool
	}{
		{[]string{"10.0.0.1"}, []string{"10.0.0.1/32"}, true},
		{[]string{"fd00:0::1", "10.0.0.1/32"}, []string{"10.0.0.1/32", "FD00::1/128", "fd00::1"}, true},
		{[]string{"172.16.1.1/24"}, []string{"172.16.1.1/32"}, false},
		{[]string{"172.16.1.1/24"}, []string{"172.16.1.2/24"}, false},
		{[]string{"a,b"}, []string{"a", "b"}, false},
		{[]string{"fe80::1%eth0"}, []string{"fe80::1"}, false},
		{nil, []string{""}, false},
	} {
		same := keyOf(target("s", 1, c.a...)) == keyOf(target("s", 2, c.b...))
		require.Equal(t, c.same, same, "%q %q", c.a, c.b)
	}
	require.NotEqual(t, keyOf(target("s", 1, "10.0.0.1")), keyOf(target("s2", 1, "10.0.0.1")))
}

// Different sets of whatever a server may send have different keys, and a key read back is the same key.
func FuzzKey(f *testing.F) {
	f.Add("10.0.0.1", "10.0.0.1/32")
	f.Add("a,b", `"a","b"`)
	f.Fuzz(func(t *testing.T, a, b string) {
		ka, kb := keyOf(target("s", 1, a)), keyOf(target("s", 1, b))
		if canonical(a) != canonical(b) {
			require.NotEqual(t, ka, kb)
			require.NotEqual(t, ka, keyOf(target("s", 1, a, b)))
		}
		require.Equal(t, keyOf(target("s", 1, a, b)), keyOf(target("s", 1, b, a, b)))
		if !strings.HasPrefix(ka.Addresses, `"`) {
			require.Equal(t, ka, keyOf(target("s", 1, strings.Split(ka.Addresses, ",")...)))
		}
	})
}

// drawTarget takes streams and addresses from a world so small that targets meet.
func drawTarget(t *rapid.T) *pb.Target {
	out := target(fmt.Sprintf("s%d", rapid.IntRange(1, 2).Draw(t, "stream")), uint32(rapid.IntRange(0, 3).Draw(t, "identifier")))
	out.State = pb.Target_State(rapid.IntRange(1, 3).Draw(t, "state"))
	for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 3), 1, 2, rapid.ID[int]).Draw(t, "addresses") {
		out.Addresses = append(out.Addresses, fmt.Sprintf("10.0.0.%d/32", n))
	}
	return out
}

func drawChanges(t *rapid.T) []*pb.Change {
	var out []*pb.Change
	for range rapid.IntRange(0, 4).Draw(t, "changes") {
		c := &pb.Change{Id: uint64(rapid.IntRange(1, 6).Draw(t, "id"))}
		if rapid.IntRange(0, 2).Draw(t, "kind") > 0 {
			c.Target = drawTarget(t)
		}
		out = append(out, c)
	}
	return out
}

// model is the plain meaning of what a server says: targets by ID.
type model map[uint64]*pb.Target

func (m model) apply(changes []*pb.Change) {
	for _, c := range changes {
		delete(m, c.GetId())
		if c.GetTarget() != nil {
			m[c.GetId()] = c.GetTarget()
		}
	}
}

// face is what a handler must know of a target.
func face(t *pb.Target) string {
	return fmt.Sprint(t.GetIdentifier(), t.GetState(), t.GetReason(), t.GetPod())
}

// byKey is the model as a handler sees it; of targets with one key the one with the greatest ID counts.
func (m model) byKey() map[Key]string {
	out := map[Key]string{}
	for _, id := range slices.Sorted(maps.Keys(m)) {
		out[keyOf(m[id])] = face(m[id])
	}
	return out
}

func faces(targets map[Key]*Target) map[Key]string {
	out := map[Key]string{}
	for k, t := range targets {
		out[k] = face(t.Target)
	}
	return out
}

// replay does what a handler does, and insists that it is told differences only.
func replay(t require.TestingT, have map[Key]string, d difference) {
	for _, r := range d.removed {
		require.Equal(t, have[r.Key], face(r.Target))
		delete(have, r.Key)
	}
	for _, s := range d.set {
		require.NotEqual(t, have[s.Key], face(s.Target))
		have[s.Key] = face(s.Target)
	}
}

func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, plain, handler := newTable(), model{}, map[Key]string{}
		t.Repeat(map[string]func(*rapid.T){
			"delta": func(t *rapid.T) {
				changes := drawChanges(t)
				plain.apply(changes)
				replay(t, handler, table.change(changes))
			},
			"snapshot": func(t *rapid.T) {
				changes := drawChanges(t)
				plain = model{}
				plain.apply(changes)
				replay(t, handler, table.replace(changes))
			},
			"": func(t *rapid.T) {
				require.Equal(t, plain.byKey(), handler)
				require.Equal(t, plain.byKey(), faces(table.held))
				require.Len(t, table.ids, len(plain))
			},
		})
	})
}

// One readiness flip among 10,000 targets costs what one target costs.
func BenchmarkDelta(b *testing.B) {
	table := newTable()
	var all []*pb.Change
	for i := range 10_000 {
		all = append(all, set(uint64(i), target("s1", uint32(i), fmt.Sprintf("10.0.%d.%d/32", i/256, i%256))))
	}
	table.replace(all)
	down := target("s1", 5, "10.0.0.5/32")
	down.State = pb.Target_STATE_INACTIVE
	flips := [][]*pb.Change{{set(5, down)}, {all[5]}}
	for i := 0; b.Loop(); i++ {
		if d := table.change(flips[i%2]); len(d.set) != 1 {
			b.Fatal("the flip was not seen")
		}
	}
}

func BenchmarkSnapshotWithoutDifference(b *testing.B) {
	table := newTable()
	var all []*pb.Change
	for i := range 10_000 {
		all = append(all, set(uint64(i), target("s1", uint32(i), fmt.Sprintf("10.0.%d.%d/32", i/256, i%256))))
	}
	for b.Loop() {
		table.replace(all)
	}
}
