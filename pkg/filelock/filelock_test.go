package filelock

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One has the file, until it lets go; looking leaves no trace.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	used := func() bool {
		is, err := InUse(path)
		require.NoError(t, err)
		return is
	}
	require.False(t, used())
	require.NoFileExists(t, path+Suffix)
	for range 2 {
		l, err := Acquire(path)
		require.NoError(t, err)
		require.True(t, used())
		_, err = Acquire(path)
		require.ErrorIs(t, err, ErrInUse)
		l.Release()
		require.False(t, used())
	}
	_, err := Acquire(filepath.Join(path, "in no directory"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
