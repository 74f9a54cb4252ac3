package maglev

import (
	"fmt"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSize(t *testing.T) {
	for targets, want := range map[int]int{0: 101, 1: 101, 2: 211, 100: 10007, 1000: 100003} {
		require.Equal(t, want, Size(targets), "targets: %d", targets)
	}
}

func identifiers(t *rapid.T, atLeast int) []uint32 {
	return rapid.SliceOfNDistinct(rapid.Uint32Range(1, 100), atLeast, 40, rapid.ID).Draw(t, "identifiers")
}

func count(table []uint32) map[uint32]int {
	shares := map[uint32]int{}
	for _, id := range table {
		shares[id]++
	}
	return shares
}

// Shares differ by one slot at most, since the targets take turns.
func TestBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := identifiers(t, 1)
		shares := count(Build(10007, ids))
		require.Len(t, shares, len(ids))
		least, most := 10007, 0
		for _, n := range shares {
			least, most = min(least, n), max(most, n)
		}
		require.LessOrEqual(t, most-least, 1)
	})
}

func TestSameSetSameTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := identifiers(t, 1)
		other := rapid.Permutation(append(slices.Clone(ids), ids[0])).Draw(t, "other")
		require.Equal(t, Build(1009, ids), Build(1009, other))
	})
}

// All slots of the target that leaves move; of the others few do. The paper measures the same.
func TestMinimalDisruption(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := identifiers(t, 2)
		gone := rapid.SampledFrom(ids).Draw(t, "gone")
		before := Build(10007, ids)
		after := Build(10007, slices.DeleteFunc(slices.Clone(ids), func(id uint32) bool { return id == gone }))
		moved := 0
		for slot := range before {
			require.NotEqual(t, gone, after[slot])
			if before[slot] != gone && before[slot] != after[slot] {
				moved++
			}
		}
		require.Less(t, moved, 10007*5/100, "slots that changed hands between survivors")
	})
}

func TestNobody(t *testing.T) { require.Nil(t, Build(101, nil)) }

func TestImpossible(t *testing.T) {
	require.Panics(t, func() { Build(100, []uint32{1}) }, "no prime")
	require.Panics(t, func() { Build(2, []uint32{1, 2, 3}) }, "too small")
}

// Replicas of different versions must agree, so the table itself is pinned.
func TestTableIsPinned(t *testing.T) {
	sum := crc32.ChecksumIEEE(fmt.Append(nil, Build(101, []uint32{1, 2, 3, 7, 100})))
	require.Equal(t, uint32(0x12c5d5ba), sum)
}

func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{3, 10, 100, 1000} {
		ids := make([]uint32, n)
		for i := range ids {
			ids[i] = uint32(i + 1)
		}
		m := Size(max(n, 100))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Build(m, ids)
			}
		})
	}
}
