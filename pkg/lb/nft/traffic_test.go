package nft

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTrafficReachesAllTargets(t *testing.T) {
	w := newWorld(t, 3)
	w.apply(simple(1, 2, 3))
	w.serve(5000)
	for _, vip := range []string{vip4, vip6} {
		require.Equal(t, []string{"1", "2", "3"}, names(w.shares(vip, 5000, 40)), vip)
	}
}
