package stream

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	for in, want := range map[string]Key{
		"ns/t/c/s":              {"ns", "t", "c", "s"},
		"t/c/s":                 {"own", "t", "c", "s"},
		"/t/c/s":                {"own", "t", "c", "s"},
		"n-1/T_2/c.3/s":         {"n-1", "T_2", "c.3", "s"},
		strings63() + "/t/c/s":  {strings63(), "t", "c", "s"},
		"t/c/" + strings63():    {"own", "t", "c", strings63()},
		"own/own/own/own":       {"own", "own", "own", "own"},
		"kube-system/a-b/0/9.z": {"kube-system", "a-b", "0", "9.z"},
	} {
		got, err := Parse(in, "own")
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
}

func strings63() string { return strings.Repeat("x", 63) }

func TestParseRefuses(t *testing.T) {
	for in, says := range map[string]string{
		"":                         "want [namespace/]trench/conduit/stream",
		"s":                        "want [namespace/]trench/conduit/stream",
		"c/s":                      "want [namespace/]trench/conduit/stream",
		"a/b/c/d/e":                "want [namespace/]trench/conduit/stream",
		"//c/s":                    "the trench is empty",
		"t//s":                     "the conduit is empty",
		"t/c/":                     "the stream is empty",
		"t/c/s x":                  "may hold only",
		"t/c/-s":                   "begin and end with a letter or digit",
		"t/c/s.":                   "begin and end with a letter or digit",
		"t/c/s\n":                  "may hold only",
		"t/c/ß":                    "may hold only",
		"t/c/x" + strings63():      "longer than 63",
		"ns/t/c;d/s":               "the conduit",
		"[namespace]/t/c/s":        "the namespace",
		strings63() + "x/t/c/s":    "the namespace",
		"/" + strings63() + "x/c/": "the trench",
	} {
		_, err := Parse(in, "own")
		require.ErrorIs(t, err, ErrInvalid, in)
		require.ErrorContains(t, err, says, in)
	}
}

func TestParseWithoutOwnNamespace(t *testing.T) {
	_, err := Parse("t/c/s", "")
	require.ErrorContains(t, err, "the namespace is empty")
}

func TestParseConduit(t *testing.T) {
	for in, want := range map[string]Conduit{
		"ns/t/c": {"ns", "t", "c"}, "t/c": {"own", "t", "c"}, "/t/c": {"own", "t", "c"},
	} {
		got, err := ParseConduit(in, "own")
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "c", "a/b/c/d", "t/", "//", "t/c c"} {
		_, err := ParseConduit(in, "own")
		require.ErrorIs(t, err, ErrInvalid, in)
	}
}

func TestOf(t *testing.T) {
	k := Key{"ns", "t", "c", "s"}
	require.Equal(t, Conduit{"ns", "t", "c"}, k.Of())
	require.Equal(t, "ns/t/c", k.Of().String())
	require.Equal(t, "ns/t/c/s", k.String())
}

func names() *rapid.Generator[Key] {
	part := rapid.StringMatching(`[a-z0-9]([-A-Z_.]{0,3}[a-z])?`)
	return rapid.Custom(func(t *rapid.T) Key {
		return Key{part.Draw(t, "namespace"), part.Draw(t, "trench"), part.Draw(t, "conduit"), part.Draw(t, "stream")}
	})
}

// Names that differ are printed differently, and what is printed is read as the same. // P28 P29
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := names().Draw(t, "a"), names().Draw(t, "b")
		got, err := Parse(a.String(), "other")
		require.NoError(t, err)
		require.Equal(t, a, got)
		require.Equal(t, a == b, a.String() == b.String())
		conduit, err := ParseConduit(a.Of().String(), "other")
		require.NoError(t, err)
		require.Equal(t, a.Of(), conduit)
	})
}

func TestCompareIsATotalOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(names(), 3, 3).Draw(t, "keys")
		a, b := keys[0], keys[1]
		require.Equal(t, Compare(a, b), -Compare(b, a))
		require.Equal(t, a == b, Compare(a, b) == 0)
		slices.SortFunc(keys, Compare)
		require.LessOrEqual(t, Compare(keys[0], keys[1]), 0)
		require.LessOrEqual(t, Compare(keys[0], keys[2]), 0)
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"ns/t/c/s", "t/c/s", "/t/c/s", "//", "t/c/s\x00", "a/b/c/d/e", "t/c/\xff"} {
		f.Add(s, "own")
	}
	f.Fuzz(func(t *testing.T, s, own string) {
		k, err := Parse(s, own)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		require.NoError(t, k.Validate())
		require.True(t, strings.HasSuffix(k.String(), strings.TrimPrefix(s, "/")), "%q became %q", s, k)
		again, err := Parse(k.String(), "")
		require.NoError(t, err)
		require.Equal(t, k, again)
	})
}

func FuzzParseConduit(f *testing.F) {
	f.Add("ns/t/c", "own")
	f.Add("t/c", "")
	f.Fuzz(func(t *testing.T, s, own string) {
		c, err := ParseConduit(s, own)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		again, err := ParseConduit(c.String(), "")
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}
