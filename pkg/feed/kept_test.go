package feed

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Keys that come and go leave no more behind than the tombstones that are wanted.
func TestNothingIsKeptOfForgottenKeys(t *testing.T) {
	const tombstones = 3
	top := NewTopic[int, string](tombstones)
	rev := uint64(0)
	publish := func(c Change[int, string]) {
		rev++
		top.Publish(rev, []Change[int, string]{c})
		require.LessOrEqual(t, top.gone.Len(), tombstones)
		require.Equal(t, len(top.items), top.order.Len())
		require.Equal(t, len(top.items)-top.gone.Len(), top.Len())
	}
	for key := range 100 {
		publish(Change[int, string]{Key: key, Value: "a"})
		publish(Change[int, string]{Key: key, Gone: true})
		publish(Change[int, string]{Key: key, Gone: true})
		if key%2 == 0 { // and comes back
			publish(Change[int, string]{Key: key, Value: "b"})
			publish(Change[int, string]{Key: key, Gone: true})
		}
	}
	require.Equal(t, tombstones, top.order.Len())
}
