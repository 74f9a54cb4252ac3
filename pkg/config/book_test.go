package config

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBookKeepsWhatWasGood(t *testing.T) {
	var b Book
	c, known := b.Config()
	require.Nil(t, c)
	require.False(t, known)

	require.True(t, b.Absent())
	require.False(t, b.Absent(), "no news")
	c, known = b.Config()
	require.Nil(t, c)
	require.True(t, known)
	require.Equal(t, "null", string(b.Document()))

	news, malformed := b.Read(full())
	require.True(t, news)
	require.Empty(t, malformed)
	good, _ := b.Config()
	news, _ = b.Read(full())
	require.False(t, news)

	bad := full()
	bad[KeyStreams] = "items: ["
	news, malformed = b.Read(bad)
	require.False(t, news, "what is stored is what was good")
	require.Len(t, malformed, 1)
	c, _ = b.Config()
	require.Equal(t, good, c)

	require.False(t, b.Absent())
	c, _ = b.Config()
	require.Equal(t, good, c, "a ConfigMap that is deleted says nothing")

	var again Book
	require.Error(t, again.Restore([]byte("{")))
	_, known = again.Config()
	require.False(t, known)
	require.NoError(t, again.Restore(b.Document()))
	c, _ = again.Config()
	require.Equal(t, good, c)
}

// A ConfigMap that appears malformed after it was absent is not taken for an empty one.
func TestBookAbsentIsNotEmpty(t *testing.T) {
	var b Book
	b.Absent()
	b.Read(map[string]string{KeyStreams: "items: ["})
	c, _ := b.Config()
	require.False(t, c.IsRead(KeyStreams))
	require.True(t, c.IsRead(KeyFlows))
}

// Whatever is written: each key says what was last good of it, and a restart in between changes nothing.
func TestBookSurvivesRestarts(t *testing.T) {
	texts := map[string][]string{}
	for key, text := range full() {
		texts[key] = []string{text, "", "items: [", "items: []\n"}
	}
	texts[KeyTrench] = []string{"name: trench-a\n", "name: trench-z\n", "", "name: ["}
	rapid.Check(t, func(t *rapid.T) {
		var b, restarted Book
		good := map[string]string{}
		for range rapid.IntRange(1, 8).Draw(t, "writes") {
			if rapid.IntRange(0, 5).Draw(t, "gone") == 0 {
				require.Equal(t, b.Absent(), restarted.Absent())
				continue
			}
			data := map[string]string{}
			for _, key := range Keys {
				data[key] = rapid.SampledFrom(texts[key]).Draw(t, key)
				if _, errs := Parse(map[string]string{key: data[key]}, nil); len(errs) == 0 {
					good[key] = data[key]
				}
			}
			b.Read(data)
			var fresh Book
			require.NoError(t, fresh.Restore(restarted.Document()))
			if _, known := restarted.Config(); known {
				restarted = fresh
			}
			restarted.Read(data)
			c, _ := b.Config()
			want, _ := Parse(good, nil)
			for _, key := range Keys {
				_, ever := good[key]
				require.Equal(t, ever, c.IsRead(key), key)
				require.Equal(t, value(want, key), value(c, key), key)
			}
			after, _ := restarted.Config()
			require.Equal(t, c, after)
			require.Equal(t, string(b.Document()), string(restarted.Document()))
			require.True(t, maps.Equal(b.good, restarted.good))
		}
	})
}
