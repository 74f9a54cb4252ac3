package tapa

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/filelock"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// What is saved is read back.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "state.json")
	f, s, damaged, err := OpenFile(path)
	require.NoError(t, err)
	require.NoError(t, damaged)
	require.Equal(t, State{Lost: true}, s)
	want := State{Application: []stream.Key{a1}, Pool: []stream.Key{a1, a2}, Held: []stream.Key{a2}}
	for range 2 {
		require.NoError(t, f.Save(want))
		f.Close()
		f, s, damaged, err = OpenFile(path)
		require.NoError(t, err)
		require.NoError(t, damaged)
		require.Equal(t, want, s)
	}
	require.NoError(t, os.WriteFile(path+".new", []byte("half of it"), 0o600))
	f.Close()
	f, s, _, err = OpenFile(path)
	require.NoError(t, err)
	require.Equal(t, want, s, "a write that was killed leaves the one before")
	require.NoError(t, os.RemoveAll(filepath.Dir(path)))
	require.Error(t, f.Save(State{}))
	f.Close()
}

// Two sidecars in one pod do not overwrite what the other stored.
func TestSecondSidecar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	f, _, _, err := OpenFile(path)
	require.NoError(t, err)
	require.NoError(t, f.Save(State{Pool: []stream.Key{a1}}))
	_, _, _, err = OpenFile(path)
	require.ErrorIs(t, err, filelock.ErrInUse)
	require.ErrorContains(t, err, path+" is another sidecar's")
	f.Close()
	f, s, _, err := OpenFile(path)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, []stream.Key{a1}, s.Pool)
}

// A damaged file is moved aside, never guessed at. // P20
func TestDamagedFile(t *testing.T) {
	good := `{"version":1,"application":[{"Namespace":"red","Trench":"a","Conduit":"c","Name":"one"}],"pool":[],"held":[]}`
	for name, data := range map[string]string{
		"empty": "", "truncated": good[:40], "zeros": string(make([]byte, 100)), "garbage after": good + "x", "newer": `{"version":2}`,
		"no name": `{"version":1,"held":[{"Trench":"a","Conduit":"c"}]}`, "another type": `[]`,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.json")
			require.NoError(t, os.WriteFile(path, []byte(data), 0o600))
			f, s, damaged, err := OpenFile(path)
			require.NoError(t, err)
			require.ErrorContains(t, damaged, path+".damaged")
			require.Equal(t, State{Lost: true}, s)
			aside, err := os.ReadFile(path + ".damaged")
			require.NoError(t, err)
			require.Equal(t, data, string(aside))
			require.NoError(t, f.Save(State{}))
			f.Close()
		})
	}
}

// A state file that cannot be read is an error, not a lost state.
func TestUnreadableFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	require.NoError(t, os.Mkdir(path, 0o700))
	_, _, _, err := OpenFile(path)
	require.ErrorContains(t, err, "reading the state file")
}

// However often a file is cut or a byte changed, it is read whole or called damaged; nothing panics.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"application":[{"Namespace":"red","Trench":"a","Conduit":"c","Name":"one"}],"pool":[],"held":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := decode(data); err == nil {
			for _, k := range append(append(s.Application, s.Pool...), s.Held...) {
				require.NotEmpty(t, k.Name)
			}
		}
	})
}

// Waits grow, and never beyond their limit.
func TestBackoff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{Base: 200, Max: 5000}
		n := rapid.IntRange(1, 1000).Draw(t, "failures")
		limit := b.Max
		if n < 6 {
			limit = min(b.Base<<(n-1), b.Max)
		}
		require.LessOrEqual(t, b.Delay(n), limit)
	})
}
